cimport cython

from ringfence.transport.quic.fast_path._established_state cimport EstablishedState


@cython.locals(is_late=cython.bint)
cpdef object hasten_acknowledgement(object last, object space, bint has_data, double now)


cdef class FastSender:
    cdef EstablishedState _state
    cdef object _quic, _last, _space, _crypto_stream, _aead, _hp, _iv, _encrypt_payload, _mask_of

    @cython.locals(start=cython.longlong, stop=cython.longlong, ranges=list)
    cpdef bint write(self, bytes data) except -1

    @cython.locals(datagrams=list, acks=cython.bint, has_data=cython.bint, datagram=bytes)
    cpdef list build(self, double now, long long window)

    @cython.locals(
        delivered=cython.longlong, data_limit=cython.longlong, stream_limit=cython.longlong,
    )
    cdef bint _needs_only_data_and_acks(self, long long window) except -1

    @cython.locals(
        size=cython.longlong, number=cython.longlong, room=cython.longlong, payload=bytearray,
        header=bytearray, cid=bytes, sealed=bytes, mask=bytes, datagram=bytes, first=cython.int,
        number_at=cython.Py_ssize_t, sample_at=cython.Py_ssize_t,
    )
    cdef bytes _packet(self, double now, bint acks, bint has_data)

    cdef void _use_keys(self, object aead, object hp) except *

    @cython.locals(largest=cython.longlong, delay=cython.longlong)
    cdef void _append_ack(self, bytearray payload, double now, object packet) except *

    @cython.locals(
        start=cython.longlong, stop=cython.longlong, highest=cython.longlong, most=cython.longlong,
        until=cython.longlong, length=cython.longlong, at=cython.longlong, pending=list,
    )
    cdef void _append_stream(self, bytearray payload, long long room, object packet) except *

    @cython.locals(ranges=list)
    cpdef object _on_ack_delivery(self, object delivery, long long largest)

    cpdef object _on_delivery(self, object delivery, long long start, long long stop)


@cython.locals(power=cython.int, size=cython.int, place=cython.int)
cdef void _append_varint(bytearray payload, long long value) except *
