"""When something is built again, and when it is not."""

from pathlib import Path

import pytest

from lab import images
from lab.build.recipe import key
from lab.images.archive import File, Image
from lab.images.catalog import Archive


def test_a_changed_file_in_a_folder_is_another_recipe(tmp_path: Path) -> None:
    (tmp_path / "source.c").write_text("a")
    before = key(tmp_path)
    (tmp_path / "source.c").write_text("b")
    assert key(tmp_path) != before


class Bakery:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recipe = "first"
        self.made = 0
        archive = Archive("bread", lambda tools: self.recipe, self._bake)
        monkeypatch.setattr(images, "archives", lambda: (archive,))

    def _bake(self, work: Path, tools: Path) -> list[Image]:
        self.made += 1
        return [Image("docker.io/lab/bread:1", files={"bread": File(self.recipe.encode())})]

    def build(self, cache: Path) -> Path:
        return images.build_all(cache, cache / "bin")[0]


def test_an_archive_is_built_again_for_another_recipe_or_when_it_is_gone_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bakery = Bakery(monkeypatch)
    assert bakery.build(tmp_path) == bakery.build(tmp_path) == tmp_path / "images" / "bread.tar.zst"
    assert bakery.made == 1
    bakery.recipe = "second"
    bakery.build(tmp_path).unlink()
    assert bakery.made == 2
    bakery.build(tmp_path)
    assert bakery.made == 3
