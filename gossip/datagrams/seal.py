"""Encryption and authentication of datagrams with the key of the cluster.

Each sender draws an id at boot and derives its own key from the cluster's key and name. So its
counter is a nonce that never repeats. Replayed datagrams are rejected. A restarted receiver does
not remember earlier datagrams. Then the generation and incarnation numbers make old records
harmless.
"""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

__all__ = ["MAX_DATAGRAM", "Rejected", "Seal"]

MAX_DATAGRAM = 1178
"""Maximum bytes of a sealed datagram."""

_VERSION = 0x01
"""First byte. Its bit 0x40 is clear, and every QUIC packet has it set."""
_KEY_ID = 4
_SENDER = 8
_COUNTER = 8
_HEAD = 1 + _KEY_ID + _SENDER + _COUNTER
_TAG = 16
_WINDOW = 1024
"""Maximum reordering: older datagrams are rejected."""
_MAX_SENDERS = 4096
_MAX_KEYS = 2


class Rejected(ValueError):
    """Error for a rejected datagram; `cause` is a short name for metrics."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"the datagram was rejected: {cause}")
        self.cause = cause


class Seal:
    """Cipher of datagrams: it encrypts with the first key, and decrypts with any of the keys."""

    def __init__(self, keys: Sequence[bytes], cluster: str, sender: int) -> None:
        """`sender` is a 64-bit number drawn at boot. Raises `ValueError` unless there are 1 or 2
        keys."""
        self._cluster = cluster.encode()
        self._sender = sender.to_bytes(_SENDER, "big")
        self._counter = 0
        self._keys: dict[bytes, bytes] = {}
        self._windows: OrderedDict[tuple[bytes, bytes], _Window] = OrderedDict()
        self.change_keys(keys)

    def change_keys(self, keys: Sequence[bytes]) -> None:
        """Replace the keys: the first one encrypts, any of them decrypts."""
        if not 1 <= len(keys) <= _MAX_KEYS:
            raise ValueError(f"seal must have 1 key, or 2 during a key change, got {len(keys)}")
        self._keys = {self._key_id(key): key for key in keys}
        self._own_id = self._key_id(keys[0])
        self._own = self._cipher(keys[0], self._sender)
        for sender_id in [
            sender_id for sender_id in self._windows if sender_id[0] not in self._keys
        ]:
            del self._windows[sender_id]

    def seal(self, payload: bytes) -> bytes:
        """Encrypt a payload; the datagram is 37 bytes longer."""
        self._counter += 1
        counter = self._counter.to_bytes(_COUNTER, "big")
        head = bytes([_VERSION]) + self._own_id + self._sender + counter
        return head + self._own.encrypt(bytes(4) + counter, payload, head)

    def open(self, datagram: bytes) -> bytes:
        """Decrypt a datagram and return its payload. Raises `Rejected`, also for a replayed
        datagram."""
        if len(datagram) > MAX_DATAGRAM:
            raise Rejected("oversized")
        if len(datagram) < _HEAD + _TAG:
            raise Rejected("truncated")
        if datagram[0] != _VERSION:
            raise Rejected("wrong_version")
        key_id, sender = datagram[1:5], datagram[5:13]
        key = self._keys.get(key_id)
        if key is None:
            raise Rejected("unknown_key")
        sender_id = key_id, sender
        window = self._windows.get(sender_id)
        cipher = window.cipher if window is not None else self._cipher(key, sender)
        head, counter = datagram[:_HEAD], datagram[13:_HEAD]
        try:
            payload = cipher.decrypt(bytes(4) + counter, datagram[_HEAD:], head)
        except InvalidTag as error:
            raise Rejected("forged") from error
        if window is None:
            # Only senders with the key reach this point, so others cannot use memory here.
            window = self._windows[sender_id] = _Window(cipher)
            if len(self._windows) > _MAX_SENDERS:
                self._windows.popitem(last=False)
        else:
            self._windows.move_to_end(sender_id)
        if not window.take(int.from_bytes(counter, "big")):
            raise Rejected("replayed")
        return payload

    def _key_id(self, key: bytes) -> bytes:
        return self._derive(key, b"id", b"")[:_KEY_ID]

    def _cipher(self, key: bytes, sender: bytes) -> ChaCha20Poly1305:
        return ChaCha20Poly1305(self._derive(key, b"sender", sender))

    def _derive(self, key: bytes, purpose: bytes, salt: bytes) -> bytes:
        """Derive a 32-byte secret from a cluster key; it does not reveal the key and differs
        between clusters."""
        material = len(self._cluster).to_bytes(4, "big") + self._cluster + salt
        return blake2b(
            material, digest_size=32, key=key[:64], person=b"ringfence " + purpose[:6]
        ).digest()


class _Window:
    """Replay window of one sender: the datagram counters that were accepted."""

    __slots__ = ("_highest", "_received_bits", "cipher")

    def __init__(self, cipher: ChaCha20Poly1305) -> None:
        self.cipher = cipher
        self._highest = 0
        self._received_bits = 0
        """One bit per counter; the lowest bit is the highest counter."""

    def take(self, counter: int) -> bool:
        """Accept the sequence number of a datagram; return False when it was used before or is too
        old to check."""
        if counter > self._highest:
            shift = min(counter - self._highest, _WINDOW)
            self._received_bits = (self._received_bits << shift | 1) & ((1 << _WINDOW) - 1)
            self._highest = counter
            return True
        bit = 1 << (self._highest - counter)
        if self._highest - counter >= _WINDOW or self._received_bits & bit:
            return False
        self._received_bits |= bit
        return True
