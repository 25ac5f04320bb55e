"""The base of a model line: everything about a line that does not depend on its model."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Struct

from openinfer_engine._executor import Executor
from openinfer_engine.errors import OptionRejected
from openinfer_engine.lines._config_reader import UnsupportedConfig
from openinfer_engine.lines._model_line import (
    Claim,
    LaunchSpec,
    Refusal,
    ServePlan,
    read_config,
)
from openinfer_engine.lines._serve_plan import ModelFacts, serve_plan

Config = TypeVar("Config", bound=ModelFacts)


class NoLineOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a line that has none of its own."""


class CheckpointLine(ABC, Generic[Config]):
    """A `ModelLine` made of two methods: `read` a configuration, `launch` an executor.

    `probe` and `plan` follow from `read`. Importing a line and calling those two needs no torch.
    """

    name: str
    options: type[Struct] = NoLineOptions
    rank: Literal["exact", "fallback"] = "exact"

    @abstractmethod
    def read(self, config: Mapping[str, Any], /) -> Config:
        """Reads a parsed config.json.

        Raises:
            UnsupportedConfig: A field is missing, malformed, or has a value that is not supported.
        """

    @abstractmethod
    def launch(self, spec: LaunchSpec, /) -> Executor:
        """Loads the weights and returns the executor, ready to step; see `ModelLine.launch`."""

    def probe(self, config: Mapping[str, Any], /) -> Claim | Refusal:
        """Claims a checkpoint that `read` accepts; refuses others with the name of the field."""
        try:
            self.read(config)
        except UnsupportedConfig as error:
            return Refusal(str(error))
        return Claim(config["architectures"][0], self.rank)

    def plan(self, spec: LaunchSpec, /) -> ServePlan:
        """Decides limits, device and dtype; reads config.json and generation_config.json.

        Raises:
            CheckpointNotFound: There is no config.json.
            OptionRejected: An option cannot be honoured, or not with this model.
        """
        self.line_options(spec)
        return serve_plan(spec, self.config_of(spec), read_config(spec.model_path))

    def config_of(self, spec: LaunchSpec) -> Config:
        """Returns the configuration of the checkpoint to serve.

        Raises:
            CheckpointNotFound: There is no config.json.
            OptionRejected: This line does not serve the checkpoint.
        """
        try:
            return self.read(read_config(spec.model_path))
        except UnsupportedConfig as error:
            raise OptionRejected("model", str(error)) from error

    def line_options(self, spec: LaunchSpec) -> Any:
        """Returns the line's own options, an instance of `options`.

        Raises:
            OptionRejected: An option is unknown or has a value of another type.
        """
        try:
            return msgspec.convert(spec.line_options, self.options)
        except msgspec.ValidationError as error:
            name = next((n for n in spec.line_options if n in str(error)), "line_options")
            raise OptionRejected(name, str(error)) from error
