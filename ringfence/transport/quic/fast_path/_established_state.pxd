cimport cython


cdef class EstablishedState:
    cdef readonly object quic, crypto, zero_rtt, space, loss, cc, pacer, path
    cdef readonly object stream, receiver, sender
    cdef readonly list ack_ranges, pending_ranges
    cdef readonly int stream_id, cid_length
    cdef readonly bint is_client
    cdef double _idle, _idle_at

    cpdef bint is_usable(self) except -1
    cpdef double idle_timeout(self, double now) except? -1
    @cython.locals(packet_time=object)
    cpdef object next_send_time(self, double now)
    cpdef object pace_after_send(self, double now)

    @cython.locals(rate=cython.double, burst=cython.double)
    cpdef object update_pace(self, long long congestion_window, double smoothed_rtt)

    @cython.locals(bucket=cython.double, evaluated_at=cython.double)
    cdef double _refilled_bucket(self, double now) except? -1
    cpdef object next_deadline(self)
