# SPDX-License-Identifier: Apache-2.0
"""spmd.Loader: batches on the device, sharded, ahead of the steps; positions; workers."""

import collections
import dataclasses
import random
import threading
import time

import numpy
import pytest
import torch
from processes import run_python
from torch.utils.data import DataLoader, RandomSampler, Sampler, WeightedRandomSampler

import torch_spmd as spmd
from torch_spmd import P

Pair = collections.namedtuple("Pair", ["x", "y"])


@pytest.fixture
def mesh():
    return spmd.make_mesh((4,), ("data",))


class Rows(torch.utils.data.Dataset):
    """Row i is full of i. `asked` are the rows that were read."""

    def __init__(self, count, wrong=None):
        self.count, self.wrong, self.asked = count, wrong, []

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        self.asked.append(i)
        if i == self.wrong:
            raise ValueError(f"row {i} is wrong")
        return {"x": torch.full((3,), float(i)), "y": i, "name": f"row {i}"}


def numbers(batches):
    return [batch["y"].tolist() for batch in batches]


# --- batches ---


@pytest.mark.parametrize("prefetch", [0, 1, 2, 10])
def test_batches_are_on_the_device_and_sharded(mesh, prefetch):
    specs = {"x": P("data"), "y": ("data",), "name": None}
    found = list(spmd.Loader(DataLoader(Rows(10), 4), specs, mesh=mesh, prefetch=prefetch))
    assert numbers(found) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    for batch in found:
        assert batch["x"].device.type == "spmd" and batch["name"][0].startswith("row")
        assert spmd.sharding_of(batch["x"]).spec == P("data", None)
        assert spmd.sharding_of(batch["y"]).spec == P("data")
        assert batch["x"][:, 0].tolist() == batch["y"].tolist()


@pytest.mark.parametrize("specs", [None, P("data"), ("data",)])
def test_one_spec_for_all(mesh, specs):
    data = [
        (torch.ones(2, 2), Pair(torch.ones(1), torch.tensor(i)), [i, {"z": 1.5}]) for i in range(8)
    ]
    for batch in spmd.Loader(DataLoader(data, 4), specs, mesh=mesh):
        x, pair, (number, inner) = batch
        assert type(pair) is Pair and isinstance(batch, list)
        for t in (x, pair.x, pair.y, number, inner["z"]):
            assert t.device.type == "spmd" and t.shape[0] == 4
            assert spmd.sharding_of(t).is_committed == (specs is not None)


@dataclasses.dataclass(frozen=True)
class Sample:
    x: torch.Tensor
    inner: dict
    name: str = "a"


def test_dataclasses_and_values_that_move_themselves(mesh):
    def collate(rows):
        x = torch.stack(rows)
        return Sample(x, {"length": torch.nn.utils.rnn.pack_sequence(rows), "y": x[:, 0]})

    specs = {"x": P("data"), "inner": {"length": None, "y": P("data")}, "name": None}
    for given in (None, P("data"), specs):
        host = DataLoader(list(torch.arange(10.0).view(5, 2)), 4, collate_fn=collate)
        for batch, mask in spmd.Loader(host, given, mesh=mesh, last="pad"):
            assert type(batch) is Sample and batch.name == "a"
            for t in (batch.x, batch.inner["y"], mask):
                assert t.device.type == "spmd" and t.shape[0] == 4
                assert spmd.sharding_of(t).is_committed == (given is not None)
            packed = batch.inner["length"]
            assert packed.data.device.type == "spmd" and packed.batch_sizes.device.type == "cpu"
    assert mask.tolist() == [True, False, False, False]


def test_a_spec_that_does_not_fit_is_named(mesh):
    for specs, said in (
        ({"x": P("data")}, r"specs has none for \['y'\] of a batch; None means no mark"),
        ({"x": P("data"), "y": P("data", None), "name": None}, r"\['y'\] has 1 dimensions"),
        ({"x": {"a": P("data")}, "y": None, "name": None}, r"\['x'\] is a tensor, and specs has"),
    ):
        with pytest.raises(ValueError, match=said):
            next(iter(spmd.Loader(DataLoader(Rows(8), 4), specs, mesh=mesh)))
    with pytest.raises(TypeError, match=r"specs\['x'\] must be a spec, a tree of specs or None"):
        spmd.Loader([], {"x": 5}, mesh=mesh)
    with pytest.raises(ValueError, match="Loader: no mesh was given"):
        spmd.Loader([], P("data"))
    with pytest.raises(TypeError, match="iterate over more than once"):
        spmd.Loader(iter([]))


@pytest.mark.parametrize("rows", [8, 10])
def test_the_last_batch(mesh, rows):
    specs = {"x": P("data"), "y": P("data"), "name": None}

    def loader(last):
        return spmd.Loader(DataLoader(Rows(rows), 4), specs, mesh=mesh, last=last)

    whole = [[0, 1, 2, 3], [4, 5, 6, 7]]
    rest = [[8, 9]] if rows == 10 else []
    assert numbers(loader("keep")) == whole + rest and len(loader("keep")) == len(whole + rest)
    assert numbers(loader("drop")) == whole and len(loader("drop")) == 2
    found = list(loader("pad"))
    assert numbers(batch for batch, _ in found) == whole + [[8, 9, 0, 0]][: len(rest)]
    masks = [mask.tolist() for _, mask in found]
    assert masks == [[True] * 4] * 2 + [[True, True, False, False]][: len(rest)]
    assert all(spmd.sharding_of(mask).spec == P("data") for _, mask in found)


def test_a_model_trains_as_with_batches_by_hand(mesh):
    def losses(batches):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 3).to("spmd")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        found = []
        for x in batches:
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        return found

    rows = torch.randn(32, 3)
    by_hand = [spmd.mark_sharding(x.to("spmd"), mesh, ("data", None)) for x in rows.split(4)]
    assert losses(spmd.Loader(DataLoader(rows, 4), P("data"), mesh=mesh)) == losses(by_hand)


# --- ahead of the steps ---


def eventually(condition):
    for _ in range(1000):
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_batches_are_read_while_nobody_asks():
    data = Rows(100)
    batches = iter(spmd.Loader(DataLoader(data, 1), prefetch=3))
    next(batches)
    # One that was taken, three that wait, and one that the thread holds.
    assert eventually(lambda: len(data.asked) == 5)
    time.sleep(0.05)
    assert len(data.asked) == 5
    next(batches)
    assert eventually(lambda: len(data.asked) == 6)


def test_python_ends_after_the_thread_of_an_epoch_that_was_left():
    """A thread within a call of the device would end the process with an error. Here it drops the
    batch that it holds; the script has dropped the two others."""
    done = run_python(
        "-c",
        """
import time
import torch
from torch.utils.data import DataLoader
import torch_spmd as spmd


class Note:
    def __del__(self):
        time.sleep(0.3)
        print("dropped", flush=True)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return {"x": torch.ones(2), "note": Note()}


mesh = spmd.make_mesh((2,), ("x",))
host = DataLoader(Rows(), batch_size=None)
batches = iter(spmd.Loader(host, {"x": None, "note": None}, mesh=mesh, prefetch=1))
next(batches)
time.sleep(1)
del batches
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "dropped\n" * 3


def test_no_thread_without_prefetch_or_after_the_end():
    def threads():
        return [t for t in threading.enumerate() if t.name == "torch_spmd.Loader"]

    batches = iter(spmd.Loader(DataLoader(Rows(8), 2), prefetch=0))
    next(batches)
    assert eventually(lambda: not threads())
    list(spmd.Loader(DataLoader(Rows(8), 2)))
    assert eventually(lambda: not threads())
    loader = spmd.Loader(DataLoader(Rows(1000), 1))
    for _ in loader:
        break  # an epoch that is left
    assert numbers(loader)[0] == [0]
    assert eventually(lambda: not threads())


# --- positions ---


class Stateful(DataLoader):
    """As torchdata's StatefulDataLoader: knows how many batches it has given."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.given = self.skipped = 0

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.skipped = state["given"]

    def __iter__(self):
        skipped, self.skipped = self.skipped, 0
        self.given = 0
        for i, batch in enumerate(super().__iter__()):
            self.given = i + 1
            if i >= skipped:
                yield batch


@pytest.mark.parametrize("kind", [DataLoader, Stateful])
@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("taken", [0, 1, 3, 5])
def test_positions_are_those_of_what_was_taken(tmp_path, kind, prefetch, taken):
    def loader():
        return spmd.Loader(kind(Rows(10), 2), prefetch=prefetch)

    first = loader()
    batches = iter(first)
    before = [next(batches)["y"].tolist() for _ in range(taken)]
    spmd.save(tmp_path, {"loader": first})
    second = loader()
    spmd.load(tmp_path, {"loader": second})
    assert before + numbers(second) == numbers(loader())
    if kind is DataLoader and 0 < taken < 5:  # what was taken is not read again
        assert second._loader.dataset.asked == list(range(2 * taken, 10))
    assert numbers(second) == numbers(loader())  # and then a whole epoch


class Logged(Rows):
    """Row i is asked for by a line of a file, in whatever process."""

    def __init__(self, count, path):
        super().__init__(count)
        self.path = path

    def __getitem__(self, i):
        with open(self.path, "a") as file:
            file.write(f"{i}\n")
        return super().__getitem__(i)


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("batch_size", [2, None])
def test_workers_are_not_asked_for_what_was_taken(tmp_path, batch_size, skip):
    """Unless they could draw random numbers."""

    def loader(path):
        own = torch.Generator().manual_seed(7)
        rows = Logged(12, tmp_path / path)
        host = DataLoader(rows, batch_size, shuffle=True, generator=own, num_workers=2, timeout=60)
        return spmd.Loader(host, skip=skip)

    expected = [
        [batch["y"]] if batch_size is None else batch["y"].tolist() for batch in loader("all")
    ]
    first = loader("first")
    batches = iter(first)
    for _ in range(3):
        next(batches)
    state = first.state_dict()
    second = loader("second")
    second.load_state_dict(state)
    got = [[batch["y"]] if batch_size is None else batch["y"].tolist() for batch in second]
    assert got == expected[3:]
    asked = sorted(int(line) for line in (tmp_path / "second").read_text().split())
    # The last of them is compared.
    assert asked == sorted(i for batch in expected[2 if skip else 0 :] for i in batch)


@pytest.mark.parametrize("generator", [True, False])
def test_shuffled_epochs_go_on(tmp_path, generator):
    def loader():
        own = torch.Generator().manual_seed(7) if generator else None
        return spmd.Loader(DataLoader(Rows(12), 2, shuffle=True, generator=own))

    def epochs(loader, n):
        return [numbers(loader) for _ in range(n)]

    torch.manual_seed(3)
    expected = epochs(loader(), 3)
    torch.manual_seed(3)
    first = loader()
    batches = iter(first)
    before = [next(batches)["y"].tolist() for _ in range(2)]
    spmd.save(tmp_path, {"loader": first, "random": spmd.checkpoint.RandomState()})
    torch.manual_seed(99)
    second = loader()
    spmd.load(tmp_path, {"loader": second, "random": spmd.checkpoint.RandomState()})
    assert before + numbers(second) == expected[0]
    assert numbers(second) == expected[1]
    spmd.save(tmp_path, {"loader": second, "random": spmd.checkpoint.RandomState()})  # between two
    third = loader()
    spmd.load(tmp_path, {"loader": third, "random": spmd.checkpoint.RandomState()})
    assert numbers(third) == expected[2]


class Shuffled(Sampler):
    """Draws from a generator of its own, or of a kind that all use, while it goes."""

    def __init__(self, generator):
        self.generator = generator

    def __iter__(self):
        left = list(range(12))
        while left:
            yield left.pop(int(self.generator.random() * len(left)))

    def __len__(self):
        return 12


@pytest.mark.parametrize("taken", [0, 2])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["replacement", "weights", "python", "numpy", "global"])
def test_generators_of_samplers_go_on(tmp_path, kind, workers, taken):
    def loader():
        own = torch.Generator().manual_seed(7)
        sampler = {
            "replacement": lambda: RandomSampler(range(12), True, 40, generator=own),
            "weights": lambda: WeightedRandomSampler([1.0] * 12, 12, generator=own),
            "python": lambda: Shuffled(random.Random(7)),
            "numpy": lambda: Shuffled(numpy.random.default_rng(7)),
            "global": lambda: Shuffled(random),
        }[kind]()
        host = DataLoader(Rows(12), 2, sampler=sampler, num_workers=workers)
        return spmd.Loader(host, prefetch=0)

    random.seed(5)
    torch.manual_seed(5)
    first = loader()
    numbers(first)
    batches = iter(first)
    for _ in range(taken):
        next(batches)
    spmd.save(tmp_path, {"loader": first, "random": spmd.checkpoint.RandomState()})
    expected = [numbers(batches), numbers(first)]
    second = loader()
    random.seed(99)
    torch.manual_seed(99)
    spmd.load(tmp_path, {"loader": second, "random": spmd.checkpoint.RandomState()})
    assert [numbers(second), numbers(second)] == expected


def test_a_position_of_other_generators_is_refused():
    own = torch.Generator()
    state = spmd.Loader(DataLoader(Rows(4), 2, shuffle=True, generator=own)).state_dict()
    other = spmd.Loader(DataLoader(Rows(4), 2))
    other.load_state_dict(state)
    with pytest.raises(ValueError, match="1 generators of random numbers; this one has 0"):
        next(iter(other))


class Drawn(Rows):
    def __getitem__(self, i):
        return torch.rand(2)


def test_a_dataset_that_draws_is_noticed_with_skip():
    def loader():
        return spmd.Loader(DataLoader(Drawn(8), 2, num_workers=1), skip=True)

    first, second = loader(), loader()
    batches = iter(first)
    next(batches)
    next(batches)
    second.load_state_dict(first.state_dict())
    torch.manual_seed(5)
    with pytest.raises(RuntimeError, match="leave skip out if the dataset draws random numbers"):
        next(iter(second))


def test_a_second_iteration_ends_the_first():
    loader = spmd.Loader(DataLoader(Rows(6), 2))
    first = iter(loader)
    next(first)
    assert len(numbers(loader)) == 3
    with pytest.raises(RuntimeError, match="was ended by a later one over the same Loader"):
        next(first)
    second = iter(loader)
    assert len(numbers(second)) == 3 and len(numbers(loader)) == 3
    with pytest.raises(StopIteration):
        next(second)


def test_a_wrong_position_is_refused():
    loader = spmd.Loader(DataLoader(Rows(4), 2))
    for state in ({}, {"position": 3}, {"position": {"batches": 1}}, {"a": 1}):
        with pytest.raises(ValueError, match=r"state must be what Loader\.state_dict returned"):
            loader.load_state_dict(state)
    with pytest.raises(TypeError, match="state must be"):
        loader.load_state_dict(5)
    assert len(numbers(loader)) == 2


# --- workers ---


@pytest.mark.parametrize("prefetch", [0, 2])
def test_what_a_dataset_raises_is_raised_where_its_batch_is_asked_for(prefetch):
    batches = iter(spmd.Loader(DataLoader(Rows(10, wrong=5), 2), prefetch=prefetch))
    assert [next(batches)["y"].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="row 5 is wrong"):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)


WORKERS = """
import torch
import torch_spmd as spmd

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        if i == 7:
            raise ValueError("the seventh")
        return torch.full((3,), float(i))

if __name__ == "__main__":
    mesh = spmd.make_mesh((2,), ("data",))
    torch.ones(2, device="spmd").sum().item()
    for how in ("fork", "spawn"):
        host = torch.utils.data.DataLoader(
            Numbers(), 2, num_workers=2, multiprocessing_context=how, timeout=60
        )
        try:
            for batch in spmd.Loader(host, spmd.P("data"), mesh=mesh):
                print(batch[:, 0].tolist(), spmd.sharding_of(batch).spec)
        except ValueError as error:
            print("the seventh" in str(error))
"""


def test_workers_by_fork_and_by_spawn(tmp_path):
    (tmp_path / "workers.py").write_text(WORKERS)
    done = run_python("workers.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    batches = [f"[{i}.0, {i + 1}.0] P('data', None)" for i in (0, 2, 4)]
    assert done.stdout.splitlines() == [*batches, "True"] * 2
