# SPDX-License-Identifier: Apache-2.0
"""Programs that an earlier process has compiled are read from disk."""

import pytest
from processes import run_script

SCRIPT = """
import torch, torch_spmd as spmd
from torch_spmd import _C
torch.manual_seed(0)
mesh = spmd.make_mesh((2, 4), ("data", "model"))
layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to("spmd")
for p in model.parameters():
    if p.dim() == 2:
        spmd.mark_sharding(p, mesh, ("model", None))
x = spmd.mark_sharding(torch.randn(8, 6, 32).to("spmd"), mesh, ("data", None, None))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = model(x).pow(3).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item().hex())
print(spmd.debug.explain(model.layers[0].linear1.weight).splitlines()[0])
print(_C.last_program().graph_text().count("aten::"))
s = _C.statistics()
print(s["compiles"], s["disk_hits"])
"""


@pytest.fixture
def run(tmp_path):
    """Runs the script in a process of its own: its lines and what it says on stderr."""

    def script(**environment):
        given = {"SPMD_CACHE_DIR": str(tmp_path / "programs"), "SPMD_CHECK_PASSES": "0"}
        done = run_script(SCRIPT, **(given | environment))
        return done.stdout.splitlines(), done.stderr

    return script


def test_the_second_process_compiles_nothing(run, tmp_path):
    (*first, counts), said = run()
    compiled, read = map(int, counts.split())
    assert compiled >= 1 and read == 0
    files = list((tmp_path / "programs").iterdir())
    assert files and "damaged" not in said
    (*second, counts), _ = run()
    assert second == first
    read = int(counts.split()[1])
    assert read == len(files)

    # What is damaged is compiled anew, and said.
    content = files[0].read_bytes()
    files[0].write_bytes(content[: len(content) // 2])
    (*third, counts), said = run()
    assert third == first
    assert int(counts.split()[1]) == read - 1
    assert "damaged" in said and str(files[0]) in said
    assert files[0].read_bytes() == content


def test_it_can_be_switched_off(run, tmp_path):
    for off in ("0", ""):
        lines, _ = run(SPMD_CACHE_DIR=off)
        assert lines[-1].endswith(" 0")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_to_is_no_error(run, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    lines, _ = run(SPMD_CACHE_DIR=str(file / "programs"))
    assert lines[-1].endswith(" 0")
