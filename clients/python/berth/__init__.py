"""Client of berth: claim slots of named pools, hold them under a lease, release them.

    with berth.claim({"db": 2}, wait="10m"):
        load()
"""

from . import aio
from .claims import Claim, claim, current, limited
from .client import Claims, Client, Pools, Runs, Steps
from .errors import BerthError, ClaimLost, NoCapacity, Unavailable
from .values import Duration, Slots, seconds
from .work import Work, execute

__all__ = [
    "BerthError",
    "Claim",
    "ClaimLost",
    "Claims",
    "Client",
    "Duration",
    "NoCapacity",
    "Pools",
    "Runs",
    "Slots",
    "Steps",
    "Unavailable",
    "Work",
    "aio",
    "claim",
    "current",
    "execute",
    "limited",
    "seconds",
]
