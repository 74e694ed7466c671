"""Token of the JupyterLab that `prepare.sh --lab` starts: there is one, whatever is configured.

A user's Jupyter configuration holds for every server of that user, and often switches the token off
for one that is protected otherwise. A password in it opens this server, too.
"""

from __future__ import annotations

import secrets

from jupyter_server.auth.identity import PasswordIdentityProvider
from traitlets import Bunch, default, validate


class AlwaysToken(PasswordIdentityProvider):
    """Identity provider with the configured token, or a new one in place of an empty one."""

    @default("token")
    def _token_default(self) -> str:
        return super()._token_default() or self._new_token()

    @validate("token")
    def _never_empty(self, proposal: Bunch) -> str:
        return proposal["value"] or self._new_token()

    def _new_token(self) -> str:
        self.token_generated = True  # then Jupyter shows it in the address
        return secrets.token_hex(24)
