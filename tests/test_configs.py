"""Configs: plain and back, changed by typed paths, wrong ones refused by name."""

import dataclasses
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from attention_residuals import AttnRes, DecoderConfig, InputError, Layers, ReadScale
from attention_residuals.configs import first_difference, from_plain, override, paths, to_plain


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Shape(ABC):
    @abstractmethod
    def area(self) -> float: ...


@dataclass(frozen=True)
class Square(Shape):
    side: float = 2.0

    def area(self) -> float:
        return self.side**2


@dataclass(frozen=True)
class Disc(Shape):
    radius: float = 1.0
    holes: tuple[int, ...] = ()

    def area(self) -> float:
        return 3.0 * self.radius**2


@dataclass(frozen=True)
class Drawing:
    title: str = "none yet"
    copies: int = 1
    scale: float = 1.0
    framed: bool = False
    colour: Colour = Colour.RED
    shape: Shape = field(default_factory=Square)
    corner: tuple[float, float] = (0.0, 0.5)
    target: Path | None = None


FULL = Drawing("a", 3, 0.5, True, Colour.BLUE, Disc(2.0, (1, 2)), (1.0, 2.0), Path("x/y"))


@pytest.mark.parametrize("drawing", [Drawing(), FULL])
def test_plain_and_back(drawing: Drawing) -> None:
    assert from_plain(Drawing, json.loads(json.dumps(to_plain(drawing)))) == drawing


def test_a_whole_decoder_goes_through_json() -> None:
    config = DecoderConfig.from_depth(12, residual=AttnRes(Layers(3), scale=ReadScale.SUM))
    assert from_plain(DecoderConfig, json.loads(json.dumps(to_plain(config)))) == config


@pytest.mark.parametrize(
    ("assignment", "name", "value"),
    [
        ("title=12", "title", "12"),
        ("copies=1e2", "copies", 100),
        ("scale=2", "scale", 2.0),
        ("framed=true", "framed", True),
        ("colour=blue", "colour", Colour.BLUE),
        ("shape=Disc", "shape", Disc()),
        ("shape.side=3", "shape", Square(3.0)),
        ("corner=[1, 2]", "corner", (1.0, 2.0)),
        ("target=a/b", "target", Path("a/b")),
        ("target=none", "target", None),
        ('shape={"type": "Disc", "radius": 4}', "shape", Disc(4.0)),
    ],
)
def test_one_assignment(assignment: str, name: str, value: Any) -> None:
    changed = override(Drawing(), [assignment])
    found = getattr(changed, name)
    assert found == value and type(found) is type(value)
    assert dataclasses.replace(changed, **{name: getattr(Drawing(), name)}) == Drawing()


def test_assignments_apply_in_order() -> None:
    assert override(Drawing(), ["shape=Disc", "shape.radius=5", "shape.holes=[7]"]).shape == Disc(5.0, (7,))


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("copies", "'copies' is no assignment"),
        ("copeis=2", "copeis is unknown.*did you mean copies"),
        ("shape.sdie=2", "shape.sdie is unknown.*did you mean side"),
        ("copies.deep=2", "copies.deep leads into copies"),
        ("copies=2.5", "copies is 2.5, which is no int"),
        ("copies=true", "copies is True, which is no int"),
        ("scale=big", "scale is 'big', which is no float"),
        ("colour=green", "colour is 'green'; choose red, blue"),
        ("shape=Cube", "shape is 'Cube'; choose Square, Disc"),
        ('shape={"type": "Cube"}', "shape has type 'Cube'; choose Square, Disc"),
        ("corner=[1]", "corner is .1.; it takes 2 values"),
    ],
)
def test_wrong_assignments_are_refused_by_name(assignment: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        override(Drawing(), [assignment])


def test_unknown_fields_of_a_file_are_refused() -> None:
    with pytest.raises(InputError, match=r"shape\.sied is unknown"):
        from_plain(Drawing, {"shape": {"type": "Square", "sied": 1}})


def test_paths_lead_everywhere() -> None:
    assert {"title", "shape", "shape.side", "corner"} <= set(paths(Drawing()))
    for path in paths(Drawing()):
        assert path.split(".")[0] in {item.name for item in dataclasses.fields(Drawing)}


def test_the_first_difference_of_two_plain_values_has_its_path() -> None:
    one = {"a": 1, "b": {"c": [1, 2], "d": None}}
    assert first_difference(one, {"a": 1, "b": {"c": [1, 2]}}) is None
    assert first_difference(one, {"a": 1, "b": {"c": [1, 3], "d": 4}}) == ("b.c", [1, 2], [1, 3])
    assert first_difference(one, {"a": 1, "b": 2, "e": 0}, "x") == ("x.b", {"c": [1, 2], "d": None}, 2)
    assert first_difference({}, {"e": 0}) == ("e", None, 0)
