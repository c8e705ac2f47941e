"""Sealing of datagrams: only holders of the cluster's key can make one that is taken.

Each sender, drawn anew at boot, has a key of its own, derived from the cluster's key and name, so
that its counter is a nonce that never repeats. What was taken once is not taken again. A receiver
that restarts forgets that; then generations and incarnations keep old news from changing anything.
"""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

__all__ = ["MAX_DATAGRAM", "Rejected", "Seal"]

MAX_DATAGRAM = 1178
"""Most bytes of a sealed datagram."""

_VERSION = 0x01
"""First byte; bit 0x40 is clear, which no QUIC packet's is."""
_KEY_ID = 4
_SENDER = 8
_COUNTER = 8
_HEAD = 1 + _KEY_ID + _SENDER + _COUNTER
_TAG = 16
_WINDOW = 1024
"""How far a datagram may be overtaken by others."""
_MOST_SENDERS = 4096
_MOST_KEYS = 2


class Rejected(ValueError):
    """A datagram that was not taken; `cause` is for counting."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"the datagram was rejected: {cause}")
        self.cause = cause


class Seal:
    """Seals with the first key, and opens what was sealed with any."""

    def __init__(self, keys: Sequence[bytes], cluster: str, sender: int) -> None:
        """`sender` is a 64-bit number drawn at boot. Raises `ValueError` without 1 or 2 keys."""
        self._cluster = cluster.encode()
        self._sender = sender.to_bytes(_SENDER, "big")
        self._counter = 0
        self._keys: dict[bytes, bytes] = {}
        self._heard: OrderedDict[tuple[bytes, bytes], _Window] = OrderedDict()
        self.change_keys(keys)

    def change_keys(self, keys: Sequence[bytes]) -> None:
        """Seal with the first key from now on, and take what any of them has sealed."""
        if not 1 <= len(keys) <= _MOST_KEYS:
            raise ValueError(f"{len(keys)} keys; a seal has 1, or 2 while they change")
        self._keys = {self._key_id(key): key for key in keys}
        self._own_id = self._key_id(keys[0])
        self._own = self._cipher(keys[0], self._sender)
        for who in [who for who in self._heard if who[0] not in self._keys]:
            del self._heard[who]

    def seal(self, payload: bytes) -> bytes:
        """Make a datagram of a payload, 37 bytes longer."""
        self._counter += 1
        counter = self._counter.to_bytes(_COUNTER, "big")
        head = bytes([_VERSION]) + self._own_id + self._sender + counter
        return head + self._own.encrypt(bytes(4) + counter, payload, head)

    def open(self, datagram: bytes) -> bytes:
        """Return the payload of a datagram, once. Raises `Rejected`."""
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
        who = key_id, sender
        window = self._heard.get(who)
        cipher = window.cipher if window is not None else self._cipher(key, sender)
        head, counter = datagram[:_HEAD], datagram[13:_HEAD]
        try:
            payload = cipher.decrypt(bytes(4) + counter, datagram[_HEAD:], head)
        except InvalidTag as error:
            raise Rejected("forged") from error
        if window is None:
            # Only those who know the key get this far, so strangers take up no room.
            window = self._heard[who] = _Window(cipher)
            if len(self._heard) > _MOST_SENDERS:
                self._heard.popitem(last=False)
        else:
            self._heard.move_to_end(who)
        if not window.take(int.from_bytes(counter, "big")):
            raise Rejected("replayed")
        return payload

    def _key_id(self, key: bytes) -> bytes:
        return self._derive(key, b"id", b"")[:_KEY_ID]

    def _cipher(self, key: bytes, sender: bytes) -> ChaCha20Poly1305:
        return ChaCha20Poly1305(self._derive(key, b"sender", sender))

    def _derive(self, key: bytes, purpose: bytes, salt: bytes) -> bytes:
        """Derive 32 bytes that tell nothing of the key; other clusters get other ones."""
        material = len(self._cluster).to_bytes(4, "big") + self._cluster + salt
        return blake2b(
            material, digest_size=32, key=key[:64], person=b"ringfence " + purpose[:6]
        ).digest()


class _Window:
    """Which of a sender's counters have been taken."""

    __slots__ = ("_highest", "_taken", "cipher")

    def __init__(self, cipher: ChaCha20Poly1305) -> None:
        self.cipher = cipher
        self._highest = 0
        self._taken = 0
        """One bit per counter, the highest one's at the right."""

    def take(self, counter: int) -> bool:
        """Take a counter; False when it was taken before, or is too old to know."""
        if counter > self._highest:
            shift = min(counter - self._highest, _WINDOW)
            self._taken = (self._taken << shift | 1) & ((1 << _WINDOW) - 1)
            self._highest = counter
            return True
        bit = 1 << (self._highest - counter)
        if self._highest - counter >= _WINDOW or self._taken & bit:
            return False
        self._taken |= bit
        return True
