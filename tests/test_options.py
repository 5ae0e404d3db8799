from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchsan.errors import UsageError
from torchsan.options import Options, Watch, When, parse_options, resolve_options
from torchsan.records import Check, decode, encode
from torchsan.records.suppression import Suppression


def resolve(tmp_path: Path, flags: dict[str, Any] | None = None, variable: str = "", pyproject: str = "") -> Options:
    (tmp_path / "pyproject.toml").write_text(pyproject)
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True, exist_ok=True)
    return resolve_options(flags or {}, {"TORCHSAN_OPTIONS": variable}, folder)


def test_nothing_said_means_all_checks_and_no_watching(tmp_path: Path) -> None:
    assert resolve(tmp_path) == Options()
    assert Options().check == (Check.VALUES, Check.STAGES, Check.METADATA, Check.MEMORY, Check.CACHE)
    assert Options().watch is Watch.OFF
    assert Options().calls == 2


def test_flags_win_over_the_variable_and_the_variable_over_the_file(tmp_path: Path) -> None:
    options = resolve(
        tmp_path,
        {"check": "memory"},
        "check=values:watch=print",
        "[tool.torchsan]\ncheck = ['stages']\nwatch = 'save'\nmax-bytes = '2G'\nno-guards = true\ncalls = 7",
    )
    assert options.check == (Check.MEMORY,)
    assert options.watch is Watch.PRINT
    assert options.max_bytes == 2 * 2**30
    assert options.no_guards
    assert options.calls == 7


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("check=values,memory:watch=print", Options(check=(Check.VALUES, Check.MEMORY), watch=Watch.PRINT)),
        ("out=s3://b/x:watch=names", Options(out="s3://b/x", watch=Watch.NAMES)),
        ("out=C:/runs:when=both", Options(out="C:/runs", when=When.BOTH)),
        ("json=a:b.json:calls=all", Options(json="a:b.json", calls=None)),
        ("quiet:fail-fast:no_guards=1", Options(quiet=True, fail_fast=True, no_guards=True)),
        ("kernels=cpp_*,!cpp_fused_add*", Options(kernels=("cpp_*", "!cpp_fused_add*"))),
        (" ", Options()),
    ],
)
def test_the_variable_is_split_only_where_an_option_follows(tmp_path: Path, variable: str, expected: Options) -> None:
    assert resolve(tmp_path, variable=variable) == expected


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("check=value", "unknown check 'value' in TORCHSAN_OPTIONS; did you mean 'values'"),
        ("chekc=values", "unknown option 'chekc' in TORCHSAN_OPTIONS; did you mean 'check'"),
        ("check=values:wach=print", "unknown option 'wach' in TORCHSAN_OPTIONS; did you mean 'watch'"),
        ("watch=loud", "unknown value of watch 'loud' in TORCHSAN_OPTIONS; allowed: off, names, print, save"),
        ("check=", "at least one of"),
        ("calls=0", "calls = '0'"),
        ("calls=-1", "calls"),
        ("max-bytes=many", "512M"),
        ("quiet=perhaps", "true or false"),
        ("out=", "expected a path"),
    ],
)
def test_a_bad_variable_says_what_is_allowed(tmp_path: Path, variable: str, message: str) -> None:
    with pytest.raises(UsageError) as e:
        resolve(tmp_path, variable=variable)
    assert message in str(e.value)


@pytest.mark.parametrize(
    "pyproject",
    ["[tool.torchsan]\nchck = 1", "[tool]\ntorchsan = 3", "not toml", "tool = 1", "[tool.torchsan]\ncheck = [1]"],
)
def test_a_bad_file_is_named(tmp_path: Path, pyproject: str) -> None:
    with pytest.raises(UsageError, match=r"pyproject\.toml"):
        resolve(tmp_path, pyproject=pyproject)


@pytest.mark.parametrize(
    ("text", "count"),
    [("512", 512), ("1k", 1024), ("512M", 512 * 2**20), ("2GiB", 2**31), (99, 99), ("3 TB", 3 * 2**40)],
)
def test_sizes_have_suffixes(text: object, count: int) -> None:
    assert parse_options("x", {"max_bytes": text}) == {"max_bytes": count}


@pytest.mark.parametrize("value", [True, 1.5, None, [], "1.5", "٣x"])
def test_counts_are_whole_numbers(value: object) -> None:
    with pytest.raises(UsageError):
        parse_options("x", {"calls": value})


@pytest.mark.parametrize(
    ("globs", "selected"),
    [
        ((), "abc"),
        (("a", "b"), "ab"),
        (("!b",), "ac"),
        (("*", "!b"), "ac"),
        (("!*", "b"), "b"),
    ],
)
def test_kernels_are_selected_by_globs(globs: tuple[str, ...], selected: str) -> None:
    options = Options(kernels=globs)
    assert "".join(k for k in "abc" if options.selects(k)) == selected


def test_options_survive_the_manifest() -> None:
    options = Options(check=(Check.MEMORY,), kernels=("a", "!b"), calls=None, max_bytes=5, out="x", quiet=True)
    assert decode(Options, encode(options)) == options


def test_suppressions_stand_in_a_file_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.torchsan]\nwatch = "print"\n')
    (tmp_path / "torchsan.toml").write_text(
        'calls = 3\n[[suppress]]\nkind = "wrong-values"\nreason = "known"\nexpires = 2027-03-01\n'
    )
    options = resolve_options({}, {}, tmp_path)
    assert options.calls == 3
    assert options.watch == "off"  # The nearest file is the only one.
    assert options.suppress == (Suppression(kind="wrong-values", reason="known", expires="2027-03-01"),)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('kind = "wrong-values"', "needs a reason"),
        ('reason = "all of them"', "needs one of kind"),
        ('kind = "wrong-vales"\nreason = "x"', "did you mean 'wrong-values'"),
        ('kinds = "wrong-values"\nreason = "x"', "did you mean 'kind'"),
        ('kind = "wrong-values"\nreason = "x"\nexpires = "soon"', "expected a date"),
    ],
)
def test_a_suppression_that_means_nothing_is_refused(tmp_path: Path, table: str, said: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[[tool.torchsan.suppress]]\n{table}\n")
    with pytest.raises(UsageError, match=said):
        resolve_options({}, {}, tmp_path)


def test_a_baseline_is_the_report_of_an_earlier_run(tmp_path: Path) -> None:
    report = tmp_path / "known.json"
    report.write_text('{"findings": [{"fingerprint": "0123"}, {"fingerprint": "0123"}]}')
    options = resolve_options({"baseline": str(report)}, {}, tmp_path)
    assert options.suppress == (Suppression(id="0123", reason="in the baseline", baseline=True),)
    for text in ("", "[]", '{"findings": [{}]}'):
        report.write_text(text)
        with pytest.raises(UsageError, match="is no report"):
            resolve_options({"baseline": str(report)}, {}, tmp_path)


@pytest.mark.parametrize("value", ["256", "-1", "x", True])
def test_an_exit_code_is_one_byte(value: object) -> None:
    with pytest.raises(UsageError, match="from 0 to 255"):
        parse_options("flags", {"exit-code": value})


@pytest.mark.parametrize(
    "line",
    [
        'out = "a\\u0000b"',
        f"kernels = {'[' * 5000}",
        f'calls = "steps:{"9" * 5000}"',
        f'calls = "{"9" * 5000}"',
        f'exit-code = "{"9" * 5000}"',
    ],
    ids=["no path", "nested", "steps", "calls", "status"],
)
def test_a_file_of_someone_else_is_refused_with_a_reason(tmp_path: Path, line: str) -> None:
    (tmp_path / "torchsan.toml").write_text(f"{line}\n")
    with pytest.raises(UsageError, match=r"expected|cannot read"):
        resolve_options({}, {}, tmp_path)
