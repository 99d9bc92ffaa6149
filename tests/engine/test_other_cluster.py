"""A stack on a cluster that is then pointed at another one, with the real engine."""

from pathlib import Path

from tests.support.engine import Project, throwaway_project

PROGRAM = """
    import pulumi
    from busbar.components.engine.stack import refuse_other_cluster

    async def main():
        config = pulumi.Config()
        await refuse_other_cluster("big", config.require("id"))
        pulumi.Stash("on-cluster", input=config.require("content"))

    pulumi.run(main)
"""


class Stack(Project):
    def configure(self, identifier: str, content: str) -> None:
        self.pulumi("config", "set", "tiny:id", identifier)
        self.pulumi("config", "set", "tiny:content", content)

    def up(self, identifier: str, content: str, *options: str) -> tuple[int, str]:
        self.configure(identifier, content)
        return self.pulumi("up", "--yes", "--skip-preview", *options)


def test_it_is_refused_in_a_preview_and_in_an_update_before_anything_else_is_touched(tmp_path: Path) -> None:
    project = Stack(tmp_path, throwaway_project(tmp_path, PROGRAM))
    project.pulumi("stack", "init")
    code, text = project.up("a1", "first")
    assert code == 0, text
    project.configure("b2", "second")
    refused = [
        project.pulumi("preview"),
        *(project.up("b2", "second", *more) for more in ((), ("--continue-on-error",))),
    ]
    for code, text in refused:
        assert code
        assert "cluster big is another one than before: its id is b2, expected a1." in text
        assert "on-cluster" not in text
    code, text = project.up("a1", "second")
    assert (code, "on-cluster" in text) == (0, True), text
