"""Dagster: a resource that claims slots for ops and assets."""

from typing import Any, Optional

from dagster import ConfigurableResource

import berth
from berth.names import label, name_of


class BerthResource(ConfigurableResource):  # type: ignore[misc]
    """A sidecar of berth. What is left out is read from the environment (``BERTH_SIDECAR`` and the others)."""

    sidecar: Optional[str] = None
    token: Optional[str] = None
    cacert: Optional[str] = None
    cert: Optional[str] = None
    key: Optional[str] = None

    def client(self) -> berth.Client:
        """Return a client of the sidecar."""
        return berth.Client(self.sidecar, self.token, self.cacert, self.cert, self.key)

    def claim(self, context: Any, pools: berth.Slots, **options: Any) -> berth.Claim:
        """Return a claim for ``with``, named after the run and the op of a context.

        The options are those of :class:`berth.Claim`.
        """
        options.setdefault("run_id", name_of(context.run_id))
        options.setdefault("step_key", name_of(context.op_handle.to_string()))
        options.setdefault("labels", {"job": label(context.job_name)})
        return berth.Claim(pools, client=self.client(), **options)
