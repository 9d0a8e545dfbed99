from __future__ import annotations

import sys
import textwrap
import zlib

import pytest

from ckptsync.errors import ConfigError
from ckptsync.layouts import registry
from ckptsync.layouts.plain import Plain
from ckptsync.layouts.verl import Verl
from ckptsync.layouts.verl_layered import VerlLayered

SHARD = "actor/model_world_size_1_rank_0.pt"
ACME = """
    from ckptsync.layouts.base import Layout

    class Acme(Layout):
        name = "acme"
        def step_of(self, name): return int(name[5:]) if name.startswith("save.") else None
        def recognise(self, paths): return "acme.bin" in paths
        def closing(self, paths): return frozenset()
        def missing(self, sizes): return ()
        def missing_here(self, sizes, seen): return ()
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package with one layout entry point, as pip would leave it on the path."""
    modules = set()

    def run(code, value, *, name="acme", package="acme-trainer"):
        site = tmp_path / package
        module = package.replace("-", "_")
        info = site / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[ckptsync.layouts]\n{name} = {module}:{value}\n")
        (site / f"{module}.py").write_text(textwrap.dedent(code))
        monkeypatch.syspath_prepend(str(site))
        modules.add(module)

    yield run
    for module in modules:
        sys.modules.pop(module, None)  # another package of this name must not get this one's code


@pytest.mark.parametrize(("name", "cls"), [("verl", Verl), ("verl_layered", VerlLayered), ("plain", Plain)])
def test_our_layouts_are_found_by_name(name, cls):
    assert name in registry.names()
    assert type(registry.load(name)) is cls
    assert registry.load(name).name == name


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown layout: 'verl-layerd': .*did you mean verl_layered\?"):
        registry.load("verl-layerd")


def test_the_plain_layout_is_bound_to_the_names_that_are_there():
    bound = registry.load("plain", ["iter_0000010"])
    assert (bound.step_of("iter_0000020"), bound.step_of("iter_20")) == (20, None)


@pytest.mark.parametrize(
    ("step_dirs", "expected"),
    [
        ({"global_step_10": [SHARD]}, "verl"),
        ({"global_step_10": ["data.pt"], "global_step_20": [SHARD], "wandb": ["x"]}, "verl"),
        ({"global_step_10": ["model_world_size_1_rank_0.pt"]}, "verl"),
        ({"global_step_10": ["pytorch_model.bin", "config.json"]}, "plain"),
        ({"step_10": ["actor/pytorch_model.bin"]}, "verl_layered"),
        ({"step_10": ["model.safetensors", "trainer_state.json"]}, "plain"),
        ({"global_step10": ["mp_rank_00_model_states.pt"]}, "plain"),
        ({"checkpoint-10": ["model.safetensors"]}, "plain"),
        ({"iter_0000010": ["__0_0.distcp"], "release": ["x"]}, "plain"),
        ({"global_step_10": []}, None),
        ({"wandb": ["x"]}, None),
        ({"checkpoint-10": [".tmpAb12Cd"]}, None),
        ({}, None),
    ],
)
def test_the_layout_is_told_by_names_and_files(step_dirs, expected):
    found = registry.detect(step_dirs)
    assert (found.name if found else None) == expected


def test_detection_binds_the_plain_layout():
    bound = registry.detect({"iter_0000010": ["__0_0.distcp"]})
    assert (bound.step_of("iter_0000020"), bound.step_of("iter_20")) == (20, None)


def test_somebody_elses_layout_is_loaded_and_detected(install):
    install(ACME, "Acme")
    assert "acme" in registry.names()
    assert registry.load("acme").step_of("save.3") == 3
    assert registry.detect({"save.3": ["acme.bin"]}).name == "acme"
    assert registry.detect({"global_step_10": [SHARD]}).name == "verl"


def test_somebody_elses_layout_comes_before_ours_for_the_same_directories(install):
    install(
        """
        from ckptsync.layouts.verl import Verl

        class Fork(Verl):
            name = "fork"
        """,
        "Fork",
        name="fork",
        package="verl-fork",
    )
    assert registry.detect({"global_step_10": [SHARD]}).name == "fork"


@pytest.mark.parametrize(
    ("code", "value", "why"),
    [
        ("import no_such_module", "Acme", "ModuleNotFoundError"),
        ("def", "Acme", "SyntaxError"),
        ("x = 1", "Acme", "AttributeError"),
        ("Acme = 7", "Acme", "is not a subclass"),
        ("class Acme: name = 'acme'", "Acme", "is not a subclass"),
        ("from ckptsync.layouts.base import Layout\nclass Acme(Layout): name = 'acme'", "Acme", "abstract"),
        (ACME.replace('"acme"\n', '"other"\n', 1), "Acme", "calls itself 'other'"),
    ],
)
def test_a_broken_package_is_named(install, code, value, why):
    package = f"acme-broken-{zlib.crc32(code.encode())}"  # a module of its own: imports are cached
    install(code, value, package=package)
    with pytest.raises(ConfigError) as caught:
        registry.load("acme")
    assert f"'acme' of package {package}" in str(caught.value)
    assert why in str(caught.value)
    with pytest.raises(ConfigError, match="cannot load the layout"):
        registry.detect({"global_step_10": [SHARD]})
    assert registry.load("verl").name == "verl"


def test_two_packages_with_one_name_are_refused(install):
    install(ACME, "Acme", package="acme-one")
    install(ACME, "Acme", package="acme-two")
    with pytest.raises(ConfigError, match=r"two layouts have one name: 'acme': .*acme-(one|two) and acme-(one|two)"):
        registry.names()
