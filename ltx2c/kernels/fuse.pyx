# cython: language_level=3, boundscheck=False, wraparound=False
"""The bindings to the C kernels: fills C structures from NumPy arrays, and runs their blocks in parallel."""

from cpython.exc cimport PyErr_CheckSignals
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.unicode cimport PyUnicode_AsUTF8
from cython.parallel cimport parallel, prange
from libc.stddef cimport ptrdiff_t, size_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, getenv
from libc.string cimport strcmp

cdef extern from "Python.h":
    str PyUnicode_DecodeFSDefault(const char *text)

cdef extern from "dispatch.h" nogil:
    ctypedef enum ltx2c_dtype:
        pass

    ctypedef struct ltx2c_matrix:
        const void *data
        ptrdiff_t stride
        ltx2c_dtype dtype

    ctypedef enum ltx2c_arithmetic:
        pass

    ctypedef struct ltx2c_kronecker:
        const float *one
        const float *two
        size_t one_rows
        size_t one_columns
        size_t two_rows
        size_t two_columns
        size_t first

    ctypedef struct ltx2c_term:
        ltx2c_matrix a
        ltx2c_matrix b
        size_t rank
        ltx2c_matrix full
        float strength
        ltx2c_kronecker kronecker

    ctypedef struct ltx2c_job:
        ltx2c_matrix weight
        ltx2c_arithmetic arithmetic
        void *out
        ptrdiff_t out_stride
        size_t rows
        size_t columns
        const ltx2c_term *terms
        size_t term_count
        uint64_t nonfinite

    ctypedef struct ltx2c_kernel:
        const char *name
        const char *(*unsupported)() noexcept nogil
        uint64_t peak_macs
        float (*peak)(float seed) noexcept nogil

    enum:
        LTX2C_KERNEL_COUNT

    const ltx2c_kernel *const ltx2c_kernels[]

cdef extern from "driver.h" nogil:
    ctypedef struct ltx2c_batch:
        size_t worker_count

    int ltx2c_plan_batch(ltx2c_batch *batch, const ltx2c_kernel *kernel, ltx2c_job *jobs, size_t job_count,
                         size_t workers)
    int ltx2c_run_block(ltx2c_batch *batch, size_t worker)
    void ltx2c_close_batch(ltx2c_batch *batch)

cdef extern from "environment.h" nogil:
    float ltx2c_round_strength(double strength)

cdef extern from "threads.h" nogil:
    int ltx2c_obtainable_threads(int wanted)
    int ltx2c_processors()
    int ltx2c_is_asked(const int *asked)
    void ltx2c_ask(int *asked)
    int ltx2c_is_time(uint64_t *last)

cdef extern from "fork.h" nogil:
    int ltx2c_survive_forks()

if ltx2c_survive_forks():
    raise MemoryError


def built():
    """The kernels of this build, slowest first: what keeps each from running on this CPU, or an empty string."""
    cdef int k
    cdef const char *reason
    verdicts = {}
    for k in range(LTX2C_KERNEL_COUNT):
        reason = ltx2c_kernels[k].unsupported()
        verdicts[ltx2c_kernels[k].name.decode()] = reason.decode() if reason else ""
    return verdicts


def forced():
    """The value of ``LTX2C_KERNEL``, None where it is empty or not set: looking in ``os.environ`` takes a while."""
    cdef const char *name = getenv("LTX2C_KERNEL")
    return PyUnicode_DecodeFSDefault(name) if name and name[0] else None


cdef const ltx2c_kernel *find_kernel(str name) except NULL:
    cdef int k
    for k in range(LTX2C_KERNEL_COUNT):
        if strcmp(ltx2c_kernels[k].name, PyUnicode_AsUTF8(name)) == 0:
            return ltx2c_kernels[k]
    raise LookupError(name)


cdef struct array_interface:
    # What NumPy's __array_struct__ points to: for bfloat16 too, which the buffer protocol does not know.
    int two, nd
    char typekind
    int itemsize, flags
    Py_ssize_t *shape
    Py_ssize_t *strides
    void *data
    void *descr

cdef enum:
    WRITEABLE = 0x400


class CancelledError(Exception):
    """Somebody asked the kernels to leave off. What they were to write is unfinished."""


cdef class Stop:
    """Asks kernels that run in other threads to leave off, within a block or two."""

    cdef int asked

    def ask(self):
        """From any thread, once and for all."""
        ltx2c_ask(&self.asked)


cdef class Jobs:
    """A list of jobs as C structures; holds the arrays they point into."""

    cdef ltx2c_job *jobs
    cdef ltx2c_term *terms
    cdef size_t job_count, job_room, term_count, term_room
    cdef list held
    cdef object interruption

    def __cinit__(self, size_t job_room, size_t term_room):
        self.jobs = <ltx2c_job *>calloc(job_room + 1, sizeof(ltx2c_job))
        self.terms = <ltx2c_term *>calloc(term_room + 1, sizeof(ltx2c_term))
        if not self.jobs or not self.terms:
            raise MemoryError
        self.job_room = job_room
        self.term_room = term_room
        self.held = []

    def __dealloc__(self):
        free(self.jobs)
        free(self.terms)

    cdef array_interface *matrix_of(self, array) except NULL:
        """Where a matrix lies. It is kept alive, and so is this."""
        capsule = array.__array_struct__
        cdef array_interface *found = <array_interface *>PyCapsule_GetPointer(capsule, NULL)
        if found.nd != 2:
            raise ValueError(f"{found.nd} dimensions")
        self.held.append(capsule)
        return found

    cdef array_interface *fill(self, ltx2c_matrix *matrix, array, int dtype) except NULL:
        cdef array_interface *found = self.matrix_of(array)
        matrix.data = found.data
        matrix.stride = found.strides[0]
        matrix.dtype = <ltx2c_dtype>dtype
        return found

    def add_job(self, weight, out, int dtype, int arithmetic):
        """Start a job: matrices [rows, columns] of one dtype, and core.h's numbers of dtype and arithmetic."""
        if self.job_count == self.job_room:
            raise IndexError("more jobs than announced")
        cdef ltx2c_job *job = &self.jobs[self.job_count]
        cdef array_interface *read = self.fill(&job.weight, weight, dtype)
        cdef array_interface *written = read if out is weight else self.matrix_of(out)
        if not written.flags & WRITEABLE:
            raise ValueError("out is read-only")
        job.arithmetic = <ltx2c_arithmetic>arithmetic
        job.out = written.data
        job.out_stride = written.strides[0]
        job.rows = read.shape[0]
        job.columns = read.shape[1]
        job.terms = &self.terms[self.term_count]
        self.job_count += 1

    cdef ltx2c_term *next_term(self) except NULL:
        if self.term_count == self.term_room or not self.job_count:
            raise IndexError("more terms than announced")
        cdef ltx2c_term *term = &self.terms[self.term_count]
        self.term_count += 1
        self.jobs[self.job_count - 1].term_count += 1
        return term

    def add_term(self, a, int a_dtype, b, int b_dtype, double strength):
        """Add a term of low rank to the job started last: A [rank, in] and B [out, rank]."""
        cdef ltx2c_term *term = self.next_term()
        term.rank = self.fill(&term.a, a, a_dtype).shape[0]
        self.fill(&term.b, b, b_dtype)
        term.strength = ltx2c_round_strength(strength)

    def add_full_term(self, d, int dtype, double strength):
        """Add a full term to the job started last: D [out, in]."""
        cdef ltx2c_term *term = self.next_term()
        self.fill(&term.full, d, dtype)
        term.strength = ltx2c_round_strength(strength)

    def add_kronecker_term(self, const float[:, ::1] one, const float[:, ::1] two, size_t first, double strength):
        """Add a term to the job started last: the Kronecker product's rows from the first on, as many as the job's."""
        cdef ltx2c_job *job = &self.jobs[self.job_count - 1]
        cdef ltx2c_term *term = self.next_term()
        if not (one.size and two.size) or first + job.rows > <size_t>(one.shape[0] * two.shape[0]):
            raise IndexError("no such rows of the product")
        if job.columns != <size_t>(one.shape[1] * two.shape[1]):
            raise IndexError("the product has other columns")
        self.held += (one, two)
        term.kronecker.one = &one[0, 0]
        term.kronecker.two = &two[0, 0]
        term.kronecker.one_rows = one.shape[0]
        term.kronecker.one_columns = one.shape[1]
        term.kronecker.two_rows = two.shape[0]
        term.kronecker.two_columns = two.shape[1]
        term.kronecker.first = first
        term.strength = ltx2c_round_strength(strength)

    cdef void look_for_signals(self, int *asked) noexcept with gil:
        """Let Python handle signals; it does so in the main thread alone."""
        try:
            PyErr_CheckSignals()
        except BaseException as interruption:
            self.interruption = interruption
            ltx2c_ask(asked)

    cdef void take_blocks(self, ltx2c_batch *batch, int worker, int *asked) noexcept nogil:
        cdef uint64_t last_look = 0
        while not ltx2c_is_asked(asked) and ltx2c_run_block(batch, worker):
            if worker == 0 and ltx2c_is_time(&last_look):  # the first worker is the thread that called
                self.look_for_signals(asked)

    def run(self, str kernel, int threads, Stop stop=None):
        """Fuse every job, on as many of the threads as the system gives.

        Returns, per job, how many values became inf or NaN where the weight was finite. Raises what a signal's handler
        raises, and ``CancelledError`` where ``stop`` was asked: outs are then unfinished.
        """
        cdef ltx2c_batch batch
        cdef int worker, workers
        cdef size_t j
        stop = Stop() if stop is None else stop
        cdef int *asked = &stop.asked
        if ltx2c_plan_batch(&batch, find_kernel(kernel), self.jobs, self.job_count, threads):
            raise MemoryError
        workers = ltx2c_obtainable_threads(batch.worker_count)
        if workers == 1:  # to open a parallel region takes longer than a small weight's fusion
            with nogil:
                self.take_blocks(&batch, 0, asked)
        else:
            with nogil, parallel(num_threads=workers):
                for worker in prange(workers, schedule="static", chunksize=1):
                    self.take_blocks(&batch, worker, asked)
        ltx2c_close_batch(&batch)
        if self.interruption is not None:
            raise self.interruption
        if ltx2c_is_asked(asked):
            raise CancelledError
        return [self.jobs[j].nonfinite for j in range(self.job_count)]


def obtainable_threads(int wanted):
    """Up to ``wanted`` threads that a parallel region in the calling thread may have now."""
    return ltx2c_obtainable_threads(wanted)


def processors():
    """CPUs that OpenMP found, before it bound the threads to one each where its variables say so; 0 without OpenMP."""
    return ltx2c_processors()


def peak(str kernel, int threads):
    """Run a kernel's innermost instruction on registers alone. Returns the multiply-adds done by all threads."""
    cdef const ltx2c_kernel *chosen = find_kernel(kernel)
    cdef float total = 0
    cdef int i
    threads = ltx2c_obtainable_threads(threads)
    with nogil, parallel(num_threads=threads):
        for i in prange(threads, schedule="static", chunksize=1):
            total += chosen.peak(1.0)
    return chosen.peak_macs * threads if total else 0


def touch(uint64_t[::1] values, int threads):
    """Read, change and write back every value in place: the least traffic a fusion in place can have."""
    cdef Py_ssize_t i
    threads = ltx2c_obtainable_threads(threads)
    with nogil, parallel(num_threads=threads):
        for i in prange(values.shape[0], schedule="static"):
            values[i] ^= 1
