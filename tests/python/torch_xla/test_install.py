# SPDX-License-Identifier: Apache-2.0
"""How `import torch_xla` comes to mean `torch_spmd.torch_xla`."""

from processes import run_python, run_script

SAME = """
import torch_xla, torch_xla.distributed.spmd as xs
from torch_xla.core import xla_model
import torch_spmd.torch_xla.distributed.spmd.xla_sharding as ours
import torch_xla.distributed.spmd.xla_sharding as theirs

assert ours is theirs and theirs.Mesh is xs.Mesh
assert torch_xla.__name__ == torch_xla.__spec__.name == "torch_spmd.torch_xla"
assert xla_model.xla_device() == torch_xla.device()
print("same")
"""


def test_names_after_the_import_alone():
    done = run_script("""
        import torch_spmd.torch_xla.install
        import torch_xla

        assert torch_xla.xm is torch_xla.core.xla_model and torch_xla.xr is torch_xla.runtime
        assert torch_xla.distributed.spmd.Mesh and torch_xla.distributed.xla_multiprocessing.spawn
        assert torch_xla.debug.metrics.counter_names and torch_xla.debug.profiler.Trace
        assert torch_xla.xu is torch_xla.utils.utils and torch_xla.eager_mode
    """)
    assert done.stdout == ""


def test_installed_by_an_import():
    done = run_script("import torch_spmd.torch_xla.install\n" + SAME)
    assert done.stdout == "same\n"


def test_installed_by_a_variable():
    done = run_script("import torch_spmd\n" + SAME, SPMD_TORCH_XLA="1")
    assert done.stdout == "same\n"


def test_installed_by_a_variable_when_torch_is_imported(tmp_path):
    """As pip installs it: PyTorch loads the backends that packages name."""
    folder = tmp_path / "torch_spmd-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_spmd\nVersion: 0\n")
    (folder / "entry_points.txt").write_text(
        "[torch.backends]\ntorch_spmd = torch_spmd_autoload:autoload\n"
    )
    start = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport torch\n"
    done = run_script(start + SAME, SPMD_TORCH_XLA="1")
    assert done.stdout == "same\n"
    done = run_script(start + "assert 'torch_spmd' not in sys.modules", fresh=True)


def test_a_script_runs(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SAME + "import sys; print(sys.argv[1:], __name__)")
    done = run_python("-m", "torch_spmd.torch_xla", script, "--flag", "x")
    assert done.stdout == "same\n['--flag', 'x'] __main__\n", done.stderr
    assert run_python("-m", "torch_spmd.torch_xla").stderr.startswith("usage: ")


def test_the_real_one_is_left_alone(tmp_path):
    (tmp_path / "_XLAC.py").write_text("")
    (tmp_path / "torch_xla.py").write_text("real = True")
    script = """
        import sys, warnings
        sys.path.insert(0, {folder!r})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import torch_spmd.torch_xla.install
        import torch_xla
        print(torch_xla.real, len(caught), "stays" in str(caught[0].message))
    """
    done = run_script(script.format(folder=str(tmp_path)))
    assert done.stdout == "True 1 True\n"


def test_an_unknown_module_is_not_found():
    done = run_script("""
        import torch_spmd.torch_xla.install

        try:
            import torch_xla.there_is_none
        except ModuleNotFoundError as error:
            print(error.name)
    """)
    assert done.stdout == "torch_xla.there_is_none\n"
