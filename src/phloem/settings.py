"""Settings from YAML files and `--name value` arguments to a configuration, and back to YAML.

A configuration is a `TrainConfig` unless another dataclass is named. Every field of it has a dotted name
(`sample.thoughts`). An argument beats every file, a later file beats an earlier one, a file beats the default; where on
the line `--config` stands does not matter.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from difflib import SequenceMatcher
from functools import cache, reduce
from os import PathLike
from pathlib import Path
from textwrap import dedent
from typing import Any, TypeVar, get_args, get_origin

import yaml

from phloem.config import TrainConfig
from phloem.kinds import ConfigError, coerce, is_optional, takes_text, type_hints

__all__ = ["Setting", "flat", "load_config", "nearest", "resolve", "sections", "settings", "to_yaml"]


Config = TypeVar("Config")


@dataclass(frozen=True)
class Setting:
    """One field: its dotted name, type, default and documentation."""

    name: str
    kind: Any
    default: Any
    doc: str


@cache
def sections(root: type = TrainConfig) -> dict[str, type]:
    """The dataclasses of a configuration by dotted name, `root` itself under the empty name."""
    return dict(_walk_sections(root, ""))


def _walk_sections(owner: type, prefix: str) -> Iterator[tuple[str, type]]:
    yield prefix, owner
    for name, kind in type_hints(owner).items():
        if isinstance(kind, type) and is_dataclass(kind):
            yield from _walk_sections(kind, f"{prefix}.{name}" if prefix else name)


@cache
def settings(root: type = TrainConfig) -> dict[str, Setting]:
    """Every field of a configuration by dotted name, in the order of the dataclasses."""
    found: dict[str, Setting] = {}
    for prefix, owner in sections(root).items():
        hints, docs = type_hints(owner), _field_docs(owner)
        for part in fields(owner):
            if not is_dataclass(hints[part.name]):
                default = part.default if part.default_factory is MISSING else part.default_factory()
                name = f"{prefix}.{part.name}" if prefix else part.name
                found[name] = Setting(name, hints[part.name], default, docs.get(part.name, ""))
    return found


def flat(config: Any) -> dict[str, Any]:
    """The value of every setting of a configuration by dotted name."""
    return {name: reduce(getattr, name.split("."), config) for name in settings(type(config))}


def _field_docs(owner: type) -> dict[str, str]:
    """The string that follows each field in the source of a dataclass."""
    (body,) = ast.parse(dedent(inspect.getsource(owner))).body
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for line, follower in zip(body.body, body.body[1:], strict=False):
        match line, follower:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[name] = inspect.cleandoc(text)
    return docs


def nearest(name: str, names: Sequence[str] | None = None) -> str:
    """The known name a reader most likely meant: alike as a whole, or in its last part."""

    def likeness(known: str) -> float:
        (section, _, last), (known_section, _, known_last) = name.rpartition("."), known.rpartition(".")
        alike = SequenceMatcher(None, name, known).ratio() + SequenceMatcher(None, last, known_last).ratio()
        return alike + 0.5 * (section == known_section)

    return max(names or list(settings()), key=likeness)


def _unknown(name: str, root: type) -> ConfigError:
    if name in sections(root):
        (example, *_) = (known for known in settings(root) if known.startswith(f"{name}."))
        return ConfigError(f"{name} is a section, not a setting: set its fields one by one, for example {example}")
    return ConfigError(f"{name} is not a setting; did you mean {nearest(name, list(settings(root)))}?")


# ---------------------------------------------------------------------------------------------------- YAML


_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-5 is a number and a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        _refuse_duplicates(node)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """YAML that `_Loader` reads back as it was."""


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Text with the rarer line ends in double quotes, the one style that keeps them."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if set(text) & _LINE_ENDS else None)


_LINE_ENDS = set("\x85\u2028\u2029")
_Dumper.add_representer(str, _represent_text)


def _refuse_duplicates(node: yaml.MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(f"line {key.start_mark.line + 1}: a key is a word, not a list or a mapping")
        if key.value in seen:
            raise ConfigError(f"line {key.start_mark.line + 1}: {key.value} is given twice")
        seen.add(key.value)


def to_yaml(config: Any) -> str:
    """Every setting of a configuration as YAML that `load_config` (or `resolve`) reads back to an equal one."""
    return yaml.dump(_plain(config), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {part.name: _plain(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _read_file(path: str | PathLike[str], root: type) -> dict[str, Any]:
    """The settings of a YAML file by dotted name, each held to its type."""
    try:
        loader = _Loader(Path(path).read_text(encoding="utf-8"))
        node = loader.get_single_node()
        return {} if node is None else dict(_read_section(loader, node, "", root))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}, {error}") from error


def _read_section(loader: _Loader, node: yaml.Node, prefix: str, root: type) -> Iterator[tuple[str, Any]]:
    line = f"line {node.start_mark.line + 1}"
    if isinstance(node, yaml.ScalarNode) and loader.construct_object(node) is None:
        return  # a section with every line commented out
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{line}: {prefix or 'the file'} takes a mapping from field to value")
    _refuse_duplicates(node)
    for key, value in node.value:
        name, line = f"{prefix}.{key.value}" if prefix else str(key.value), f"line {key.start_mark.line + 1}"
        if name and name in sections(root):
            yield from _read_section(loader, value, name, root)
        elif name not in settings(root):
            raise ConfigError(f"{line}: {_unknown(name, root)}")
        else:
            try:
                yield name, coerce(name, loader.construct_object(value, deep=True), settings(root)[name].kind)
            except ConfigError as error:
                raise ConfigError(f"{line}: {error}") from error


# ----------------------------------------------------------------------------------------------- arguments


def _read_word(name: str, text: str, kind: Any) -> Any:
    """A word of the command line as the type of its setting; `a,b` is a list of texts."""
    if takes_text(kind):
        return coerce(name, None if text == "null" and is_optional(kind) else text, kind)
    value = _read_yaml(text)
    if isinstance(value, str) and get_origin(kind) is tuple and get_args(kind)[0] is str:
        value = [part.strip() for part in value.split(",")]
    return coerce(name, value, kind)


def _read_yaml(text: str) -> Any:
    """A word as YAML; one that YAML takes for a comment, or for a value with a comment after it, is text."""
    try:
        node = yaml.compose(text, Loader=_Loader)
        if text.strip() and (node is None or text[node.end_mark.index :].strip()):
            return text
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        return text


def _set_argument(values: dict[str, Any], name: str, text: str, root: type) -> None:
    known = settings(root)
    mapping, _, key = name.rpartition(".")
    if name in known:
        values[name] = _read_word(name, text, known[name].kind)
    elif mapping in known and get_origin(known[mapping].kind) is dict:
        values[mapping] = {**values.get(mapping, known[mapping].default), key: _read_yaml(text)}
    else:
        raise _unknown(name, root)


def resolve(
    paths: Sequence[str | PathLike[str]], arguments: Sequence[tuple[str, str]] = (), root: type[Config] = TrainConfig
) -> Config:
    """The configuration of files, in order, overridden by `(name, text)` arguments, in order.

    `task.args.KEY` sets one key of a setting that holds a mapping; a file's mapping replaces an earlier one whole.

    Raises:
        ConfigError: an unknown name, a value of the wrong type, or settings that cannot go together.
    """
    values: dict[str, Any] = {}
    for path in paths:
        values |= _read_file(path, root)
    for name, text in arguments:
        _set_argument(values, name, text, root)
    return _build(root, "", values, root)


def load_config(*paths: str | PathLike[str]) -> TrainConfig:
    """The configuration of YAML files; of a setting given in several, the last one counts.

    Raises:
        ConfigError: as `resolve`, with the file and line.
    """
    return resolve(paths)


def _build(owner: type, prefix: str, values: dict[str, Any], root: type) -> Any:
    arguments: dict[str, Any] = {}
    for part in fields(owner):
        name = f"{prefix}.{part.name}" if prefix else part.name
        if name in sections(root):
            arguments[part.name] = _build(sections(root)[name], name, values, root)
        elif name in values:
            arguments[part.name] = values[name]
    return owner(**arguments)
