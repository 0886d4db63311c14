"""As those of `bell`."""

from tests.actors.accounts.bell.traits import OPTIONS as OPTIONS
from tests.actors.accounts.bell.traits import TRAITS as TRAITS
