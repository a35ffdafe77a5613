"""What a model holds, without the samples: keyed digests of them, in memory or in a ledger.

`Change` is what comes in; `Holdings` is what answers and keeps; `neverseen.holdings.deciding` says what may come and
go, in one place for both kinds of holdings.
"""

from neverseen.holdings.change import FORGET, FORGET_CLASS, LEARN, Change
from neverseen.holdings.deciding import Decision, decide, members_of, moved, require_new, standing
from neverseen.holdings.digests import DIGEST_SIZE, Member, Ticket, member_digests, owned_number, tickets_of
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
    "Member",
    "MemoryHoldings",
    "Ticket",
    "decide",
    "member_digests",
    "members_of",
    "moved",
    "owned_number",
    "require_new",
    "standing",
    "tickets_of",
]
