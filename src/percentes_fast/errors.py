"""The one exception tree; every class says whose fault it is and which exit code follows.

Never: messages over one line, or messages without a remedy.
Plan: `PercentesError` at the root; `exit_code` is read by the command line alone.
"""

from __future__ import annotations

import errno

EXIT_VALID = 0
EXIT_COULD_NOT_RUN = 1
EXIT_INVALID = 2
EXIT_INTERRUPTED = 130


class PercentesError(Exception):
    """Root of everything this package raises on purpose. The text is one line."""

    exit_code = EXIT_COULD_NOT_RUN

    def __str__(self) -> str:
        return " ".join(super().__str__().split())


class ConfigError(PercentesError):
    """The configuration, a flag or an input file is wrong: the user's to mend."""


class ClientError(PercentesError):
    """This machine cannot do it: no core, no memory, no port, a full disk, no extension."""


class TargetError(PercentesError):
    """The server is not there, or does not answer as the configuration expects."""


class FaultError(PercentesError):
    """The fault cannot be armed: nothing to kill, the wrong process, no permission."""


class DataError(PercentesError):
    """A run directory or a published file is incomplete, damaged or of another version."""


class InterruptedRunError(PercentesError):
    """The user ended it; what was measured is kept."""

    exit_code = EXIT_INTERRUPTED


class NativeMissingError(ClientError):
    """The compiled core is absent: measuring needs it, analysis does not."""


def remedy(code: int, otherwise: str = "mend this machine") -> str:
    """What to change on this machine after a client fault of that errno."""
    return REMEDIES.get(errno.errorcode.get(code, ""), otherwise)


# what to change on this machine, by the name of the errno of a client fault
REMEDIES = {
    "EMFILE": "raise the limit of open files (ulimit -Hn 65536)",
    "ENFILE": "raise the system's limit of open files (sysctl fs.file-max)",
    "EADDRNOTAVAIL": "widen the port range (sysctl net.ipv4.ip_local_port_range='10240 65535')",
    "ENOBUFS": "give the kernel's network more memory (sysctl net.ipv4.tcp_mem)",
    "ENOMEM": "free memory, or raise this container's limit",
    "EACCES": "let this user open connections (a firewall or a security policy refused)",
    "EPERM": "let this user open connections (a firewall or a security policy refused)",
}
