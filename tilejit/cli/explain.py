"""``tilejit explain CODE``: the page of an error code. Not here: the pages (``docs/errors``)."""

from __future__ import annotations

import argparse

from tilejit import explain
from tilejit.cli.output import OK, WrongUse, print_json


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("code", metavar="CODE", help="such as ld_st/vector-axis")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(options: argparse.Namespace) -> int:
    try:
        page = explain.page(options.code)
    except LookupError as error:
        raise WrongUse(str(error.args[0])) from None
    if options.json:
        print_json({"code": options.code, "page": page})
    else:
        print(page.rstrip("\n"))
    return OK
