"""Holdings: the record of the samples that a model holds, as keyed digests, in memory or in a ledger.

A `Change` describes samples to learn or forget. `neverseen.holdings.deciding` decides whether it is allowed, for both
kinds of `Holdings`, which answer its questions and record the result.
"""

from neverseen.holdings.change import FORGET, FORGET_CLASS, LEARN, Change
from neverseen.holdings.deciding import Decision, decide, members_of, moved, require_new, standing
from neverseen.holdings.digests import (
    DIGEST_SIZE,
    Member,
    Origin,
    Ticket,
    content_digest,
    member_digests,
    owned_number,
    ticket_number,
)
from neverseen.holdings.joint import JointHoldings
from neverseen.holdings.memory import MemoryHoldings
from neverseen.holdings.protocol import Found, HeldTicket, Holdings

__all__ = [
    "DIGEST_SIZE",
    "FORGET",
    "FORGET_CLASS",
    "LEARN",
    "Change",
    "Decision",
    "Found",
    "HeldTicket",
    "Holdings",
    "JointHoldings",
    "Member",
    "MemoryHoldings",
    "Origin",
    "Ticket",
    "content_digest",
    "decide",
    "member_digests",
    "members_of",
    "moved",
    "owned_number",
    "require_new",
    "standing",
    "ticket_number",
]
