"""Names of files that hold secrets, and of files that programs of the person run by themselves. Pure."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_FILES = """
    .env .env.* *.env .envrc .netrc _netrc .npmrc .pypirc .git-credentials .pgpass .my.cnf .htpasswd .dockercfg .s3cfg
    .boto .terraformrc .vault-token .vault_pass*
    id_rsa* id_dsa* id_ecdsa* id_ed25519* *.pem *.key *.p12 *.pfx *.jks *.keystore *.kdbx *.ppk
    kubeconfig kubeconfig.* *.kubeconfig *.tfvars *.tfvars.json *.tfstate *.tfstate.* local.settings.json
    service-account*.json service_account*.json client_secret*.json secret secrets *.secret *.secrets
"""
_STEMS = "secret secrets *-secret *-secrets *_secret *_secrets credential credentials *-credentials *_credentials"
_DATA = "json yaml yml toml ini cfg conf properties xml txt csv db env"
"""Endings of files that hold values; a `secrets.py` is code, and can be read."""
_FOLDERS = ".ssh .gnupg .aws .azure .kube .gcloud .password-store"
_OPEN = """
    *.example *.sample *.template *.tmpl *.dist *.defaults *.pub
    cacert.pem ca.pem ca-*.pem cert.pem chain.pem fullchain.pem *-cert.pem *_cert.pem *.cert.pem
"""
"""Names of files of files that only show the form of a secret, or are public."""
_RUN = ".git .vscode .idea .devcontainer .husky .githooks .envrc"
"""Names whose content git, an editor or a shell runs on the person's machine. Commands of git may change the rest of
`.git`, see `GIT_RUN`."""
GIT_RUN = ("hooks", "config", "config.worktree")
"""Names in a directory of git that make it run programs."""

SHOWN = 50
"""Limit of patterns by which a person makes secrets readable."""


def _any(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(fnmatch.translate, patterns)), re.IGNORECASE)


_hidden = _any((*_FILES.split(), "credentials", *(f"{s}.{e}" for s in _STEMS.split() for e in _DATA.split())))
_folders, _open = _any(_FOLDERS.split()), _any(_OPEN.split())
FIXED = frozenset(_RUN.split())


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for the files of a person's folder. Paths are parts relative to the folder.

    Guarantees: names are compared without case. Non-guarantees: a secret under another name is not recognised, nor one
    within a file, an archive or the objects of git.
    """

    shown: tuple[str, ...] = ()
    """Patterns of names or relative paths that the person makes readable."""
    private: tuple[tuple[str, ...], ...] = ()
    """Paths that belong to the installation: hidden, whatever `shown` says."""

    def hidden(self, parts: Sequence[str]) -> bool:
        """Tells whether a path, or a directory above it, holds secrets."""
        if any(tuple(parts[: len(path)]) == path for path in self.private):
            return True
        return any(self._secret(parts[: depth + 1]) for depth in range(len(parts)))

    def _secret(self, parts: Sequence[str]) -> bool:
        name = parts[-1]
        if not (_folders.match(name) or (_hidden.match(name) and not _open.match(name))):
            return False
        path = "/".join(parts)
        return not any(fnmatch.fnmatch(name, shown) or fnmatch.fnmatch(path, shown) for shown in self.shown)

    def fixed(self, parts: Sequence[str]) -> bool:
        """Tells whether a path is read-only because of what the person's programs do with it."""
        return any(name.lower() in FIXED for name in parts)
