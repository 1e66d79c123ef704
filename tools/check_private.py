# SPDX-License-Identifier: Apache-2.0
"""Checks that private symbols of PyTorch have one door: python tools/check_private.py [root]

torch_spmd/_compat.py names them, each with what for, what would replace it, and what happens when
it is missing. No other module of the package has any of these:

    import torch._subclasses                  a module, or a name in it, that begins with _
    from torch.utils import _pytree
    torch._C._dispatch_keys(t)                an attribute of what was imported from torch
    module._parameters                        an attribute that tensors, modules and others have

Ops (`torch.ops.aten._softmax`) are public whatever they are called, and so are names that begin
with two underscores.

In C++ the headers of csrc/trace/compat name them, each in a paragraph with such a line. No other
source of csrc has any of these, outside of comments and strings:

    #include <c10/core/impl/LocalDispatchKeySet.h>    impl, detail, functorch, generated
    at::detail::empty_cpu                             a name of these namespaces
    c10::DispatchKey::FuncTorchBatched                a key of functorch or of tests
    tensor._base(), THPVariable_Check, _PyObject…     a function that begins with _, or with THP
    storage_offset_                                   a member that a class of PyTorch protects

`at::_ops::_softmax` is an op, and so is `at::_softmax` where <ATen/ops/_softmax.h> is included.
Prints one line per violation and exits with 1 if there are any.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

DOOR = "_compat.py"

# Attributes of objects of PyTorch whose types a reader of the syntax does not know.
ATTRIBUTES = {
    "_backward_hooks",
    "_base",
    "_buffers",
    "_cdata",
    "_dataset_kind",
    "_device_mesh",
    "_flat_weights",
    "_flat_weights_names",
    "_forward_hooks",
    "_forward_pre_hooks",
    "_is_view",
    "_local_tensor",
    "_modules",
    "_next_index",
    "_non_persistent_buffers_set",
    "_parameters",
    "_split_tensor",
    "_validate_device",
    "_version",
}


CPP_DOOR = Path("csrc/trace/compat")
SOURCES = {".h", ".cc", ".cu", ".inc"}
_TEXT = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<end>\w*)\(.*?\)(?P=end)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'',
    re.DOTALL,
)
_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]((?:ATen|c10|torch)/[^>"]+)[>"]')
_PRIVATE_FOLDER = re.compile(r"/(?:impl|detail|functorch|generated)/")
_PRIVATE = re.compile(
    r"\b(?:impl|detail|functorch|autograd::generated)::\w+|\bnamespace \w+ = [\w:]*functorch\b"
    r"|\b(?:FuncTorch|TESTING_ONLY_|THP[A-Z]|_Py)\w+|(?:::|\.|->)\s*_[a-z]\w*"
)
# The ops of sparse tensors that are methods.
METHODS = {"_indices", "_nnz", "_values"}
# What classes of PyTorch protect, of those from which csrc derives: TensorImpl, StorageImpl,
# GeneratorImpl, and autograd's Node.
PROTECTED = {
    "autograd_meta_",
    "data_type_",
    "device_opt_",
    "extra_meta_",
    "input_metadata_",
    "is_channels_last_",
    "is_channels_last_3d_",
    "is_channels_last_3d_contiguous_",
    "is_channels_last_contiguous_",
    "is_contiguous_",
    "is_non_overlapping_and_dense_",
    "is_wrapped_number_",
    "key_set_",
    "mutex_",
    "next_edges_",
    "numel_",
    "post_hooks_",
    "pre_hooks_",
    "sizes_and_strides_",
    "storage_",
    "storage_access_should_throw_",
    "storage_offset_",
    "topological_nr_",
    "version_counter_",
}
# Members of structs of autograd's engine.
FIELDS = {"captures_", "fw_grad_", "grad_fn_", "hooks_", "output_nr_", "grad_accumulator_"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def has_private(parts: list[str]) -> bool:
    return parts[:2] != ["torch", "ops"] and any(map(is_private, parts))


def imported(tree: ast.Module) -> tuple[dict[str, list[str]], list[tuple[int, str]]]:
    """What names of the module stand for, by name, and private imports with their lines."""
    known: dict[str, list[str]] = {}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "torch":
                    known[alias.asname or "torch"] = parts if alias.asname else ["torch"]
                    if has_private(parts):
                        found.append((node.lineno, alias.name))
        elif isinstance(node, ast.ImportFrom) and not node.level:
            base = (node.module or "").split(".")
            for alias in node.names:
                parts = [*base, alias.name]
                if base[0] == "torch":
                    known[alias.asname or alias.name] = parts
                    if has_private(parts):
                        found.append((node.lineno, ".".join(parts)))
    return known, found


def chain(node: ast.Attribute) -> list[str] | None:
    """`a.b.c` as a list; None if it does not begin with a name."""
    parts: list[str] = []
    at: ast.expr = node
    while isinstance(at, ast.Attribute):
        parts.append(at.attr)
        at = at.value
    return [at.id, *reversed(parts)] if isinstance(at, ast.Name) else None


def violations(path: Path) -> Iterator[tuple[int, str]]:
    tree = ast.parse(path.read_text())
    known, found = imported(tree)
    yield from found
    inner: set[int] = set()
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    own = {node.attr for node in attributes if of_self(node)}
    for node in attributes:
        if node.attr in ATTRIBUTES and node.attr not in own:
            yield node.lineno, f"….{node.attr}"
        if id(node) in inner:
            continue
        inner.update(id(part) for part in ast.walk(node) if isinstance(part, ast.Attribute))
        parts = chain(node)
        if parts is not None and parts[0] in known:
            begin = known[parts[0]]
            # What was imported has been judged with its import.
            if has_private([*begin, *parts[1:]]) and any(map(is_private, parts[1:])):
                yield node.lineno, ".".join([*begin, *parts[1:]])


def of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def code_of(text: str) -> str:
    """C++ without its comments and strings, with the same lines."""
    return _TEXT.sub(lambda found: "\n" * found.group().count("\n") or " ", text)


def private_in_cpp(path: Path) -> Iterator[tuple[int, str]]:
    """The private symbols that a source names, with their lines."""
    text = path.read_text()
    header = path.with_suffix(".h")
    declared = code_of(text + (header.read_text() if header.exists() else ""))
    ops = set(re.findall(r"#include <ATen/ops/(_\w+?)(?:_\w+_dispatch|_ops)?\.h>", text))
    for number, line in enumerate(text.splitlines(), 1):
        if (found := _INCLUDE.match(line)) and _PRIVATE_FOLDER.search(found[1]):
            yield number, found[1]
    for number, line in enumerate(code_of(text).splitlines(), 1):
        for found in _PRIVATE.finditer(line):
            name = found.group().lstrip(":.->").strip()
            before = line[: found.start()]
            if found.group().startswith("::") and name.startswith("_"):
                # Ops, also those of `namespace ops = at::_ops`.
                if re.search(r"\b_?ops$", before) or name == "_ops" or name in ops:
                    continue
            elif name in METHODS or before.endswith("py::"):
                continue
            yield number, name
        for found in re.finditer(r"(?P<of>\.|->)?\b(?P<name>[a-z]\w*_)\b", line):
            of, name = found["of"], found["name"]
            named = name in FIELDS if of else name in PROTECTED
            if named and not re.search(rf"(?!return\b)\b[\w:]+[>*&]*\s+{name}\b", declared):
                yield number, name


def without_a_line(path: Path) -> Iterator[tuple[int, str]]:
    """Private symbols of the door, in paragraphs that do not say what would replace them."""
    text = path.read_text()
    begins = [0, *(found.end() for found in re.finditer(r"\n\n(?=\S)", text))]
    starts = [0, *(found.end() for found in re.finditer(r"\n", text))]
    for number, name in private_in_cpp(path):
        at = starts[number - 1]
        begin = max(k for k in begins if k <= at)
        end = next((k for k in begins if k > at), len(text))
        said = re.sub(r"\s*//\s*", " ", text[begin:end])
        says = "s above." in said or ("Instead: " in said and "Without: " in said)
        if not says and not text.startswith("#include", at):
            yield number, name


def main(root: Path) -> int:
    package = root / "torch_spmd"
    count = 0
    for path in sorted(package.rglob("*.py")):
        if path == package / DOOR:
            continue
        for line, name in sorted(set(violations(path))):
            count += 1
            place = f"{path.relative_to(root)}:{line}"
            print(f"{place}: {name} is private to PyTorch; torch_spmd/{DOOR} may name it")
    for path in sorted((root / "csrc").rglob("*")):
        if path.suffix not in SOURCES:
            continue
        in_door = root / CPP_DOOR in path.parents
        for line, name in sorted(set((without_a_line if in_door else private_in_cpp)(path))):
            count += 1
            place = f"{path.relative_to(root)}:{line}"
            says = "has no line that says what for, what instead and what is lost without it"
            other = f"is private to PyTorch; {CPP_DOOR} may name it"
            print(f"{place}: {name} {says if in_door else other}")
    return 1 if count else 0


if __name__ == "__main__":
    here = Path(__file__).resolve().parent.parent
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else here))
