cimport cython

from ringfence.transport.quic.fast_path._established_state cimport EstablishedState


cdef class FastReceiver:
    cdef EstablishedState _state
    cdef object _quic, _space, _aead, _hp, _iv, _decrypt_payload, _mask_of
    cdef bytes _payload, _data
    cdef Py_ssize_t _at
    cdef int _first
    cdef long long _number

    @cython.locals(
        number=cython.longlong, size=cython.longlong, lower=cython.longlong, received=set,
        is_eliciting=cython.bint, is_next=cython.bint,
    )
    cpdef bytes receive(self, bytes data, object address, double now)

    @cython.locals(ranges=list)
    cdef void _add_to_acknowledge(self, long long number) except *

    cdef void _use_keys(self, object aead, object hp) except *

    @cython.locals(
        number_at=cython.Py_ssize_t, sample_at=cython.Py_ssize_t, mask=bytes, header=bytearray,
        first=cython.int, length=cython.int, place=cython.int, byte=cython.int,
        sent_number=cython.longlong, number=cython.longlong,
    )
    cdef bint _decrypt(self, bytes data) except -1

    cdef void _schedule_ack(self, double now, bint is_next) except *

    @cython.locals(
        end=cython.Py_ssize_t, at=cython.Py_ssize_t, kind=cython.int, is_known=cython.bint,
        is_eliciting=cython.bint,
    )
    cpdef bint _process_frames(self, bytes payload, double now) except -1

    cpdef bint _process_by_aioquic(self, bytes payload, double now) except -1

    @cython.locals(
        payload=bytes, end=cython.Py_ssize_t, begin=cython.Py_ssize_t,
        offset=cython.longlong, length=cython.longlong,
    )
    cdef bint _process_stream(self, Py_ssize_t at, int kind) except -1

    @cython.locals(
        largest=cython.longlong, delay=cython.longlong, ranges=cython.longlong,
        before=cython.longlong, oldest=cython.longlong, is_eliciting=cython.bint,
        ack_delay=cython.double,
    )
    cdef bint _process_ack(self, Py_ssize_t at, double now) except -1

    @cython.locals(latest=cython.double, least=cython.double)
    cdef void _update_rtt(self, double rtt, double ack_delay, double now) except *

    @cython.locals(
        payload=bytes, at=cython.Py_ssize_t, end=cython.Py_ssize_t, place=cython.Py_ssize_t,
        first=cython.int, value=cython.longlong,
    )
    cdef long long _read_varint(self) except? -1


@cython.locals(window=cython.longlong, number=cython.longlong)
cdef long long _full_number(long long sent, int length, long long expected) except? -1
