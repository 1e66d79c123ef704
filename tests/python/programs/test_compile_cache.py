# SPDX-License-Identifier: Apache-2.0
"""Programs that an earlier process has compiled are read from disk."""

import os
import re

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
    """Runs the script in a process of its own; returns its lines and its stderr."""

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

    # A damaged entry is compiled again, with a warning.
    content = files[0].read_bytes()
    files[0].write_bytes(content[: len(content) // 2])
    (*third, counts), said = run()
    assert third == first
    assert int(counts.split()[1]) == read - 1
    assert "damaged" in said and str(files[0]) in said
    assert files[0].read_bytes() == content


def test_open_dimensions_are_as_they_were_compiled(tmp_path):
    """Marks that name some axes only, as those of manual regions: the others stay sharded."""
    script = """
        import torch, torch_spmd as spmd
        mesh = spmd.make_mesh((2, 4), ("data", "context"))
        q, k, v = (torch.randn(2, 4, 16, 8, device="spmd") for _ in range(3))
        for t in (q, k, v):
            spmd.mark_sharding(t, mesh, ("data", None, "context", None))
        spmd.nn.ring_attention(q, k, v, mesh, is_causal=True).sum().item()
        print([(row.kind, row.bytes) for row in spmd.debug.collectives()])
        print(spmd._C.statistics()["disk_hits"])
    """
    given = {"SPMD_CACHE_DIR": str(tmp_path / "programs"), "SPMD_CHECK_PASSES": "0"}
    first, second = (run_script(script, **given).stdout.splitlines() for _ in range(2))
    assert first[0] == second[0] and "all_gather" not in first[0]
    assert (first[1], second[1]) == ("0", "1")


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


def test_a_directory_that_others_may_write_to_is_refused(run, tmp_path):
    shared = tmp_path / "programs"
    shared.mkdir()
    shared.chmod(0o777)
    lines, said = run()
    assert lines[-1].endswith(" 0")
    assert list(shared.iterdir()) == []
    assert said.count("compiled programs are not kept for the next process") == 1
    assert "chmod go-w" in said and "SPMD_CACHE_DIR" in said


def test_pipes_and_links_are_refused(run, tmp_path):
    programs = tmp_path / "programs"
    (*first, _), _ = run()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    files = sorted(programs.iterdir())
    for make in (os.mkfifo, lambda path: path.symlink_to(victim)):
        files[0].unlink()
        make(files[0])
        (*second, _), said = run()
        assert second == first
        assert said.count("is no regular file") == 1
        assert files[0].is_file() and not files[0].is_symlink()
    assert victim.read_text() == "precious"
    (*third, counts), said = run()
    assert third == first and "damaged" not in said
    assert int(counts.split()[1]) == len(files)


def test_an_entry_decides_how_and_not_what(run, tmp_path):
    """Decisions that somebody else wrote, with a digest that fits them."""
    (*first, _), _ = run()
    files = sorted((tmp_path / "programs").iterdir())
    for file in files:
        _, _, body = file.read_bytes().split(b"\n", 2)
        start = body.rindex(b"\ndecisions ") + 1
        decisions = body[body.index(b"\n", start) + 1 : -1]
        # Nothing is sharded, and neither are inputs and outputs.
        changed = re.sub(rb"(?m)^node .*$", b"node @0", decisions)
        changed = re.sub(rb"\{[0-9,/]+\}", b"{}", changed)
        body = body[:start] + b"decisions %d\n%s\n" % (len(changed), changed)
        file.write_bytes(b"torch_spmd program 2\ndigest %s\n%s" % (digest(body), body))
    (*second, counts), said = run()
    assert float.fromhex(second[0]) == pytest.approx(float.fromhex(first[0]), rel=1e-4)
    assert second[1:] == first[1:]
    assert "damaged" not in said and int(counts.split()[1]) == len(files)


def digest(text):
    """The fingerprint of bytes, as `Fingerprinter` of csrc/ir computes it."""
    mask = 2**64 - 1

    def scramble(x):
        for _ in range(2):
            x = (x ^ x >> 32) * 0xD6E8FEB86659FD93 & mask
        return x ^ x >> 32

    def rotate(x, by):
        return (x << by | x >> (64 - by)) & mask

    high, low = 0x243F6A8885A308D3, 0xB7E151628AED2A6A
    for word in [
        len(text),
        *(int.from_bytes(text[i : i + 8], "big") for i in range(0, len(text), 8)),
    ]:
        low = (scramble(low ^ word) + 0x9E3779B97F4A7C15) & mask
        high = scramble((high + rotate(word, 29) * 0xA0761D6478BD642F) & mask) ^ rotate(low, 17)
    both = scramble(high ^ rotate(low, 31)), scramble((low + high) & mask)
    return b"%016x%016x" % both
