"""The published charts that training is compared with; tests/unit/charts/extract.py writes extracts/."""

from pathlib import Path

from tests.unit.charts.extract import Published

FOLDER = Path(__file__).parent / "extracts"
CHARTS = {
    "kubeflow-trainer": Published(
        "https://github.com/kubeflow/trainer",
        ("v2.3.0",),
        (
            "charts/kubeflow-trainer/values.yaml",
            "manifests/base/crds/trainer.kubeflow.org_clustertrainingruntimes.yaml",
            "manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml",
        ),
        "github.com/kubeflow/trainer/v2",
        FOLDER,
    )
}
