"""Search-space files: the shipped ones are right, and every fault of a wrong one is named with its place."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from autofuse.errors import SpaceError
from autofuse.schedule.space import folder, for_family, load, shipped
from autofuse.schedule.spacefile import Fault, check


def test_shipped_files_have_no_fault() -> None:
    families, archs = ("map", "reduction", "contract"), (80, 90, 100)
    assert {path.stem for path in shipped()} >= {f"{family}_sm{arch}" for family in families for arch in archs}
    assert check(shipped()) == []


def test_extends_overrides_in_part() -> None:
    base, older = load("contract_sm90"), load("contract_sm80")
    knobs = {knob.name: knob for knob in older.knobs}
    assert knobs["access"].values == ("pointer",)
    assert older.classes["m"] == base.classes["m"]
    assert 512 in base.classes["n"]["grid"].blocks
    assert 512 not in older.classes["n"]["grid"].blocks
    assert list(older.classes["n"]) == list(base.classes["n"])  # order is preference
    assert [c.name for c in older.constraints] == [c.name for c in base.constraints]
    smem = {c.name: c.expression.text for c in older.constraints}["shared_memory"]
    assert "num_stages - 1" in smem
    assert older.target["arch"] == 80
    assert older.target["multiprocessors"] == 108


def test_nearest_older_architecture() -> None:
    assert for_family("map", 120).arch == 100
    assert for_family("map", 89).arch == 80
    assert for_family("map", 75).arch == 80
    with pytest.raises(SpaceError, match="no search space"):
        for_family("sorting", 90)


def child(tmp_path: Path, text: str) -> list[Fault]:
    for name in ("map_sm90",):
        (tmp_path / f"{name}.toml").write_text((folder() / f"{name}.toml").read_text())
    path = tmp_path / "child.toml"
    path.write_text('extends = "map_sm90"\narch = 90\n' + text)
    return check([path])


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("[class.inner]\ngrid = { blocks = [3], default = 3 }", 4, "no power of two"),
        ("[class.inner]\ngrid = { blocks = [], default = 4 }", 4, "must be a list"),
        ("[class.inner]\ngrid = { blocks = [8, 4], default = 4 }", 4, "ascend"),
        ("[class.inner]\ngrid = { blocks = [4, 8], default = 5 }", 4, "none of blocks"),
        ("[class.inner]\ngrid = { blocks = [4, 8] }", 4, "default is missing"),
        ("[class.inner]\ngrid = { blocks = [4], default = 4, parts = [1] }", 4, "has no 'parts'"),
        ("[class.inner]\nspiral = {}", 4, "unknown role"),
        ("[class.k]\nloop = {}", 3, "no class 'k'"),
        ("[class]\ninner = 3", 4, "must be a table"),
        ("[knobs]\nnum_warps = { values = [3], default = 3 }", 4, "no power of two"),
        ("[knobs]\nnum_warps = { values = [true], default = true }", 4, "no number"),
        ("[knobs]\nnum_warps = { values = [4, 4], default = 4 }", 4, "repeats"),
        ("[knobs]\nflatten = { values = [0, 1], default = 0 }", 4, "none of False, True"),
        ("[knobs]\naccess = { values = ['tma'], default = 'tma' }", 4, "none of pointer, descriptor"),
        ("[knobs]\n\nwarps = { values = [4], default = 4 }", 5, "unknown knob 'warps'"),
        ("[target]\nsmem_per_block = -1", 4, "positive number"),
        ("[target]\ncolour = 1", 4, "unknown fact"),
        ("colour = 1", 3, "unknown key 'colour'"),
        ("[[constraint]]\nname = 'x'\nexpr = 'block_inner > 1'", 3, "reason must be"),
        ("[[constraint]]\nname = 'x'\nexpr = 'num_warps'\nreason = 'r'", 5, "gives a number"),
        ("[[constraint]]\nname = 'x'\nexpr = 'block_k > 1'\nreason = 'r'", 5, "unknown name 'block_k'"),
        ("[[constraint]]\nname = 'x'\nexpr = '1 < 2'\nreason = 'r'\nwhy = ''", 7, "has no 'why'"),
        ("\n\nx = [1,\n", 5, "not TOML"),
    ],
)
def test_one_fault_with_its_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    found = child(tmp_path, text)
    assert any(said in fault.message and fault.line == line for fault in found), found
    assert all(fault.path.endswith("child.toml") for fault in found)


def test_all_faults_at_once_with_columns(tmp_path: Path) -> None:
    found = child(
        tmp_path,
        "[[constraint]]\nname = 'x'\nexpr = 'num_warps > 1 and bogus > 2'\nreason = 'r'\n"
        "[knobs]\nwarps = { values = [4], default = 4 }\nnum_warps = { values = [5], default = 5 }\n",
    )
    assert [(fault.line, fault.column) for fault in found] == [(5, 9 + 18), (8, 1), (9, 1)]


def test_multiline_expression_place(tmp_path: Path) -> None:
    found = child(
        tmp_path, '[[constraint]]\nname = "x"\nreason = "r"\nexpr = """\n(num_warps > 1\n and bogus > 2)"""\n'
    )
    assert [(fault.line, fault.column) for fault in found] == [(8, 6)]


def test_fault_in_the_base_is_named_there(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('family = "map"\narch = 90\n[knobs]\nbogus = 1\n')
    (tmp_path / "top.toml").write_text('extends = "base"\n')
    assert [Path(f.path).name for f in check([tmp_path / "top.toml"]) if "bogus" in f.message] == ["base.toml"]


def test_missing_parts_are_named_beside_other_faults(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('family = "map"\narch = 90\n[class.outer]\ngrid = {}\n')
    said = [fault.message for fault in check([path])]
    assert "class 'inner' is missing" in said
    assert "class 'outer' is missing" not in said  # it is there, and wrong


def test_broken_files_are_faults_never_exceptions(tmp_path: Path) -> None:
    rng = random.Random(0)
    path = tmp_path / "x.toml"
    pieces = ["[1]", "{ a = 1 }", "nan", "-1", "true", '"x"', "[[1]]", "[]", "1e9", '"("', '"a\\u0000"', "1979-05-27"]
    for file in ("map_sm90", "contract_sm90"):
        lines = (folder() / f"{file}.toml").read_text().splitlines()
        for _ in range(150):
            copy = list(lines)
            for _ in range(3):
                at = rng.randrange(len(copy))
                key, equals, _rest = copy[at].partition("=")
                copy[at] = f"{key}= {rng.choice(pieces)}" if equals else copy[at][: rng.randrange(len(copy[at]) + 1)]
            path.write_text("\n".join(copy))
            for fault in check([path]):
                assert fault.message
                assert 1 <= fault.line <= len(copy) + 1
                assert fault.column >= 1


@pytest.mark.parametrize("text", ['extends = "loop"', 'extends = "absent"', "extends = '../x'", "extends = 3"])
def test_bad_extends(tmp_path: Path, text: str) -> None:
    path = tmp_path / "loop.toml"
    path.write_text(text + '\nfamily = "map"\narch = 90\n')
    assert any("extends" in fault.message and fault.line == 1 for fault in check([path]))


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('family = "map"\narch = 90\n')
    said = "\n".join(str(fault) for fault in check([path]))
    for name in ("class 'inner' is missing", "knob 'num_warps' is missing", "smem_per_block is missing"):
        assert name in said
    path.write_text("")
    assert {fault.message for fault in check([path])} == {"family is missing", "arch is missing"}


def test_load_lists_all_faults(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('family = "map"\narch = 90\n')
    with pytest.raises(SpaceError) as caught:
        load(path)
    assert str(caught.value).count("\n") > 5
    with pytest.raises(SpaceError, match="cannot be read"):
        load(tmp_path / "absent.toml")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SpaceError, match="not UTF-8"):
        load(path)


def test_a_deeply_nested_file_is_a_fault(tmp_path: Path) -> None:
    file = tmp_path / "deep.toml"
    file.write_text(f"x = {'[' * 3000}{']' * 3000}\n")
    (fault,) = check([file])
    assert "nested too deeply" in str(fault)
