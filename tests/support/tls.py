"""What a server needs to speak TLS."""

from __future__ import annotations

import ssl

import trustme


def speaking_tls(authority: trustme.CA, name: str) -> ssl.SSLContext:
    """What a server needs that has a certificate for a name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context
