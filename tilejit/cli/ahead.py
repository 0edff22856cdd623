"""``tilejit compile FILE:KERNEL -o DIR``: a kernel compiled ahead of time, for programs without Python.

Writes ``NAME.cubin``, ``NAME.json`` (signature, parameters in launch order, launch), ``NAME.h`` (a C header that
launches it) and ``NAME.tile`` (for ``tile.load``). Needs no GPU.

Not here: the header (``header``), the saved form (``runtime.saved``).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tilejit import __version__
from tilejit.cli import arguments, header, show
from tilejit.cli.output import OK, WrongUse, columns, print_json, size_text
from tilejit.runtime import saved
from tilejit.runtime.saved import Saved
from tilejit.runtime.variant import Variant


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE:KERNEL", help="a Python file and one of its kernels")
    parser.add_argument(
        "-o", "--output", default=".", metavar="DIR", help="where to write (default: here)"
    )
    parser.add_argument(
        "--name", metavar="NAME", help="of the files and in C (default: the kernel's)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")
    arguments.add_to(parser)  # fmt: skip


def run(options: argparse.Namespace) -> int:
    found = list(show.variants(options.file, arguments.flags_of(options)))
    folder = Path(options.output)
    written: list[dict[str, Any]] = []
    for number, (kernel, label, variant) in enumerate(found, 1):
        name = header.c_name(options.name or kernel.replace(".", "_")) + (
            f"_{number}" if len(found) > 1 else ""
        )
        files = write(variant, folder, name)
        written.append(
            {
                "kernel": kernel, "case": label, "target": variant.target, "origin": variant.origin,
                "files": [str(path) for path in files],
            }
        )  # fmt: skip
    if options.json:
        print_json(written)
        return OK
    for row in written:
        print(f"{row['kernel']}, {row['case']}, for {row['target']}: {row['origin']}")
        sizes = [(file, size_text(Path(file).stat().st_size)) for file in row["files"]]
        print(columns(sizes, "  "))
    return OK


def write(variant: Variant, folder: Path, name: str) -> list[Path]:
    """The four files of one variant. ``WrongUse`` where they cannot be written."""
    kept = saved.of(variant)
    texts: list[tuple[str, bytes]] = [
        ("cubin", variant.cubin),
        ("json", (json.dumps(facts(variant, kept, name), indent=1) + "\n").encode()),
        ("h", header.header(kept, name).encode()),
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, data in texts:
            (folder / f"{name}.{suffix}").write_bytes(data)
    except OSError as error:
        raise WrongUse(f"cannot write to {folder}: {error.strerror or error}") from None
    tile = variant.save(folder / f"{name}{saved.SUFFIX}")
    return [*(folder / f"{name}.{suffix}" for suffix, _ in texts), tile]


def facts(variant: Variant, kept: Saved, name: str) -> dict[str, Any]:
    """What ``NAME.json`` says. Expressions are C over the parameters' names."""
    fixed = kept.attributes
    return {
        "tilejit": __version__,
        "kernel": kept.artifact.kernel,
        "name": name,
        "entry": kept.artifact.entry,
        "target": kept.artifact.target,
        "signature": [saved.arg_data(arg_name, arg) for arg_name, arg in kept.signature.args],
        "reads": sorted(variant.read),
        "writes": sorted(variant.written),
        "parameters": [
            {
                "name": p.name, "c_name": header.c_name(p.name), "kind": p.kind,
                "argument": kept.params[p.arg].name,
                **({"dimension": p.dim} if p.kind in ("size", "stride") else {}),
                "dtype": p.dtype.name, "c_type": header.c_type(p), "size_bytes": header.size_bytes(p),
                "what": header.describe(kept, p),
            }
            for p in kept.launch_params
        ],
        "tensor_maps": [header.map_facts(kept, spec) for spec in kept.artifact.tensor_maps],
        "launch": {
            "grid": header.grid_texts(kept),
            "grid_bound": kept.launch.grid_bound,
            "block": fixed.block,
            "cluster": fixed.cluster,
            "cooperative": fixed.cooperative,
            "programmatic_stream_serialization": fixed.programmatic_stream_serialization,
            "dynamic_shared_bytes": fixed.dynamic_shared_bytes,
        },
        "resources": show.stats_data(variant),
    }  # fmt: skip
