"""Certificate and key of a server, checked before the server starts."""

import ssl
from dataclasses import dataclass

from openinfer_frontend.errors import TlsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Certificate files in PEM format.

    Raises:
        TlsError: a file cannot be used; the message names it.
    """

    certfile: str
    """The certificate, followed by the intermediate certificates."""
    keyfile: str | None = None
    """The key; None if it is in `certfile`."""
    ca_certs: str | None = None
    """Certificates that must have signed the client's certificate; None: clients need none."""

    def __post_init__(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certfile, self.keyfile)
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror or "it is not a PEM certificate with its key"
            raise TlsError(f"the certificate {self.certfile} cannot be used: {reason}") from error
        if self.ca_certs is None:
            return
        try:
            context.load_verify_locations(self.ca_certs)
        except (OSError, ssl.SSLError) as error:
            raise TlsError(f"the certificates {self.ca_certs} cannot be used") from error

    @property
    def cert_reqs(self) -> ssl.VerifyMode:
        """Whether clients must have a certificate."""
        return ssl.CERT_NONE if self.ca_certs is None else ssl.CERT_REQUIRED
