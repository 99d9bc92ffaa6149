"""The SSH login to the hosts: the key, and the bastion in front of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from busbar.config import Bastion, ConfigError, Ssh
from busbar.config.files import resolve
from busbar.config.findings import Finding
from busbar.models import StrictModel


def key_digest(key: str) -> str:
    """Identifies a private key without disclosing it (a key has at least 128 bits of entropy)."""
    return hashlib.sha256(key.encode()).hexdigest()[:12]


class Login(StrictModel):
    """The key comes from `key_file`, else from `private_key` (its text), else from the ssh-agent."""

    key_file: str | None = None
    private_key: str | None = None
    private_key_password: str | None = None
    bastion: Bastion | None = None
    key_digest: str | None = None
    """Digest of the key: a host that passed preflight with another key is checked again."""

    @classmethod
    def of(
        cls,
        ssh: Ssh,
        *,
        private_key: str | None = None,
        private_key_password: str | None = None,
        project: Path | None = None,
    ) -> Login:
        """The login that the section `ssh` describes.

        `private_key` and `private_key_password` are the secrets busbar:sshPrivateKey and
        busbar:sshPrivateKeyPassword. With `project` a relative key file is resolved against that folder.
        Without it the path stays as written, for a process that runs in the project folder.
        """
        key_file = ssh.key_file
        if key_file is not None and project is not None:
            key_file = str(resolve(project, key_file))
        use_secret = key_file is None and not ssh.agent
        return cls(
            key_file=key_file,
            private_key=private_key if use_secret else None,
            private_key_password=None if ssh.agent else private_key_password,
            bastion=ssh.bastion,
        )

    @property
    def uses_agent(self) -> bool:
        """Whether the key is in the ssh-agent."""
        return self.key_file is None and self.private_key is None

    def key_text(self, project: Path) -> str | None:
        """The text of the private key; None with the ssh-agent. A relative file starts at `project`.

        Raises ConfigError if the file cannot be read.
        """
        if self.key_file is None:
            return self.private_key
        path = resolve(project, self.key_file)
        try:
            return path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not a text file"
            what = f"cannot be read: {reason} ({path})"
            raise ConfigError([Finding(("ssh", "key_file"), what, found=repr(self.key_file))]) from None
