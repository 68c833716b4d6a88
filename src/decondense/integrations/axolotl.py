"""A plugin for Axolotl: two keys in its YAML add the loss to its trainer.

    plugins: [decondense.integrations.axolotl.DecondensePlugin]
    decondense: {weight: 0.1}

The section takes the options of `regularize`: loss, weight, layers, schedule, ramp_steps, tau, …
With `sample_packing` each document of a packed row is a sequence. Axolotl's attention mask numbers the documents, which
`segments: auto` would take for the mask of one.
"""

from __future__ import annotations

from typing import Any

from axolotl.integrations.base import BasePlugin
from pydantic import BaseModel, field_validator

from ..handle import Handle
from ..regularizer import regularize, term_of


class DecondenseArgs(BaseModel):
    """The section `decondense` of Axolotl's configuration."""

    decondense: dict[str, Any] = {}

    @field_validator("decondense")
    @classmethod
    def _known(cls, section: dict[str, Any]) -> dict[str, Any]:
        try:
            term_of(**{key: value for key, value in section.items() if key != "modules"})
        except TypeError as error:  # pydantic reports ValueErrors only
            raise ValueError(str(error)) from error
        return section


class DecondensePlugin(BasePlugin):
    """Attaches the loss once Axolotl has built its trainer."""

    handle: Handle

    def get_input_args(self) -> str:
        return f"{__name__}.{DecondenseArgs.__name__}"

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        packed: dict[str, Any] = {"segments": "position_ids"} if cfg.sample_packing else {}
        self.handle = regularize(trainer, **packed | dict(cfg.decondense or {}))
