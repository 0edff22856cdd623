/* The warm launch in C: `k(...)` from arguments to cuLaunchKernelEx without running Python code.

   A Launcher stands in for a kernel's generated function (dispatch.py) and calls that function whenever
   it is not certain. It keeps a short list of records, one per key the function has met: what the
   arguments looked like (`Check`), the outside values, and the plan's facts. A call whose arguments
   match a record is launched from the stack of this call; nothing shared is written. What may differ
   between two calls of one record is exactly what the generated function leaves out of its key.

   Tensors are read through the DLPack exchange API (its structs are restated below: neither torch's
   nor CUDA's headers are needed). Records are learned after a successful Python launch: `resolve` names
   the plan and its facts.
   Not here: compiling, diagnosing, retrying (all of it is the Python function's); which facts (native.py). */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef Py_GIL_DISABLED
#error "records are guarded by the GIL"
#endif

enum { VERSION = 3 }; /* of what native.py passes: a build from other sources is not used */
enum { MAX_ARGS = 64, MAX_SLOTS = 256, MAX_RECORDS = 64, MAX_MAPS = 16, LEARNING_COSTS = 64, MOST_CREDIT = 256 * LEARNING_COSTS };

/* --- DLPack 1.x and the driver, as much as is used */

typedef struct { int32_t type, id; } Device;
typedef struct { uint8_t code, bits; uint16_t lanes; } ElementType;
typedef struct {
    char *data;
    Device device;
    int32_t ndim;
    ElementType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} Tensor;
typedef int (*ReadTensor)(void *object, Tensor *out);
typedef int (*ReadStream)(int device_type, int32_t device, void **stream);

typedef struct {
    uint32_t grid[3], block[3], shared_bytes;
    void *stream, *attributes;
    uint32_t attribute_count;
} Config; /* CUlaunchConfig */
typedef int (*LaunchKernel)(const Config *, void *function, void **parameters, void **extra);
typedef int (*EncodeTiled)(void *map, int format, uint32_t rank, void *address, const uint64_t *sizes,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                           int interleave, int swizzle, int promotion, int fill);

enum { DEVICE_CUDA = 2, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201 };

/* --- one argument */

typedef enum { CONST, TENSOR, INT, FLOAT, BOOL, NONE } Kind;
typedef enum { INT32, INT64, UINT64 } Width; /* the first an unannotated integer fits */

typedef struct {
    Kind kind;
    Width width;
    int64_t i; /* INT (UINT64: as bits), BOOL */
    double f;
    Tensor t;
    PyObject *object; /* borrowed */
} Seen;

typedef struct { /* a parameter of the kernel */
    PyObject *name, *fallback; /* fallback: its default, or NULL */
    int constant, open;        /* open: no declared type, the width of an integer counts */
    uint64_t align_mask;
    uint32_t dynamic; /* bit d: dimension d may vary */
} Param;

typedef struct { /* what a record asks of an argument */
    Kind kind;
    Width width;
    int32_t ndim;
    ElementType dtype;
    Device device;
    uint64_t align;
    int contiguous;
    int64_t *shape, *strides; /* strides follow shape in one block */
    PyObject *value;          /* CONST */
} Check;

static uint64_t address_of(const Tensor *t) { return (uint64_t)(uintptr_t)t->data + t->byte_offset; }

/* 0, as no address has it, of what has no memory. */
static uint64_t alignment_class(uint64_t address, uint64_t mask)
{
    if (!address) return 0;
    uint64_t low = address & mask;
    return low ? low & (~low + 1) : mask + 1;
}

static int is_contiguous(const Tensor *t)
{
    int64_t step = 1;
    for (int d = 0; d < t->ndim; d++)
        if (t->shape[d] == 0) return 1;
    for (int d = t->ndim - 1; d >= 0; d--) {
        if (t->shape[d] != 1 && t->strides[d] != step) return 0;
        step *= t->shape[d];
    }
    return 1;
}

/* As dispatch.typed tells values apart; False where only Python can say. */
static int same_constant(PyObject *a, PyObject *b)
{
    if (a == b) return 1;
    if (Py_TYPE(a) != Py_TYPE(b)) return 0;
    if (PyLong_CheckExact(a) || PyUnicode_CheckExact(a) || PyBytes_CheckExact(a)) {
        int same = PyObject_RichCompareBool(a, b, Py_EQ);
        if (same < 0) PyErr_Clear();
        return same > 0;
    }
    if (PyFloat_CheckExact(a)) {
        double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
        return memcmp(&x, &y, sizeof x) == 0;
    }
    if (PyTuple_CheckExact(a)) {
        Py_ssize_t n = PyTuple_GET_SIZE(a);
        if (n != PyTuple_GET_SIZE(b)) return 0;
        for (Py_ssize_t i = 0; i < n; i++)
            if (!same_constant(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return 0;
        return 1;
    }
    return 0;
}

static int tensor_matches(const Check *c, const Param *p, const Tensor *t)
{
    if (t->ndim != c->ndim || memcmp(&t->dtype, &c->dtype, sizeof t->dtype) != 0) return 0;
    if (t->device.type != c->device.type || t->device.id != c->device.id) return 0;
    if (alignment_class(address_of(t), p->align_mask) != c->align) return 0;
    if (!p->dynamic) {
        int equal = 1;
        for (int d = 0; d < t->ndim; d++) {
            if (t->shape[d] != c->shape[d]) return 0;
            equal &= t->strides[d] == c->strides[d];
        }
        return equal || (c->contiguous && is_contiguous(t));
    }
    for (int d = 0; d < t->ndim; d++) {
        /* A size that may vary is not 0: such a launch has no plan. */
        if (p->dynamic >> d & 1 ? t->shape[d] == 0 : t->shape[d] != c->shape[d]) return 0;
        int follows = p->dynamic >> d > 1; /* a dynamic dimension to the right */
        if (follows ? (t->strides[d] == 0) != (c->strides[d] == 0) : t->strides[d] != c->strides[d])
            return 0;
        /* The plan of one element may have been made for another stride than the one it has. */
        int stride_counts = !follows || c->strides[d] == 0;
        if (stride_counts && (t->shape[d] == 1) != (c->shape[d] == 1)) return 0;
    }
    return 1;
}

static int argument_matches(const Check *c, const Param *p, const Seen *s)
{
    if (c->kind != s->kind) return 0;
    switch (c->kind) {
    case CONST: return same_constant(c->value, s->object);
    case TENSOR: return tensor_matches(c, p, &s->t);
    case INT: return !p->open || c->width == s->width;
    default: return 1;
    }
}

/* --- argument slots */

typedef enum { POINTER, SCALAR, SIZE, STRIDE } Source;
typedef enum {
    T_BOOL, T_INT8, T_INT16, T_INT32, T_INT64, T_UINT8, T_UINT16, T_UINT32, T_UINT64,
    T_FLOAT16, T_FLOAT32, T_FLOAT64, T_BFLOAT16
} Type; /* native.TYPES has the same order */

typedef struct { uint8_t source, arg, dim, type; } Slot;

static int put_integer(Type type, int64_t v, int is_unsigned_64, uint64_t *slot)
{
    static const int64_t low[] = {0, INT8_MIN, INT16_MIN, INT32_MIN, INT64_MIN, 0, 0, 0};
    static const int64_t high[] = {1, INT8_MAX, INT16_MAX, INT32_MAX, INT64_MAX, UINT8_MAX, UINT16_MAX, UINT32_MAX};
    static const uint8_t bits[] = {8, 8, 16, 32, 64, 8, 16, 32};
    if (type == T_UINT64) {
        if (v < 0 && !is_unsigned_64) return 0;
        *slot = (uint64_t)v;
        return 1;
    }
    if (is_unsigned_64 || v < low[type] || v > high[type]) return 0;
    *slot = bits[type] == 64 ? (uint64_t)v : (uint64_t)v & ((1ULL << bits[type]) - 1);
    return 1;
}

static uint16_t bfloat16_bits(double value) /* plan.bfloat16_bits */
{
    uint64_t bits;
    if (value != value) return 0x7FFF;
    memcpy(&bits, &value, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 63 << 15);
    uint64_t magnitude = bits & ~(1ULL << 63);
    int64_t exponent = (int64_t)(magnitude >> 52) - 1023 + 127;
    if (exponent >= 255) return sign | 0x7F80;
    int64_t drop = 45 + (exponent < 1 ? 1 - exponent : 0);
    uint64_t significand = (magnitude & ((1ULL << 52) - 1)) | (magnitude >> 52 ? 1ULL << 52 : 0);
    if (drop > 54) return sign;
    uint64_t kept = significand >> drop, rest = significand & ((1ULL << drop) - 1), half = 1ULL << (drop - 1);
    kept += rest > half || (rest == half && (kept & 1));
    return sign | (uint16_t)(exponent < 1 ? kept : ((uint64_t)(exponent - 1) << 7) + kept);
}

static int put_float(Type type, double v, uint64_t *slot)
{
    int finite = v - v == 0;
    if (type == T_FLOAT64) {
        memcpy(slot, &v, sizeof v);
    } else if (type == T_FLOAT32) {
        float narrow = (float)v;
        if (finite && narrow - narrow != 0) return 0;
        memcpy(slot, &narrow, sizeof narrow);
    } else if (type == T_BFLOAT16) {
        uint16_t bits = bfloat16_bits(v);
        if (finite && (bits & 0x7FFF) == 0x7F80) return 0;
        *slot = bits;
    } else if (PyFloat_Pack2(v, (char *)slot, 1) < 0) {
        PyErr_Clear();
        return 0;
    }
    return 1;
}

/* False when the value does not fit: the generated function says why. */
static int put(Slot s, const Seen *seen, uint64_t *slot)
{
    const Seen *a = &seen[s.arg];
    *slot = 0;
    switch ((Source)s.source) {
    case POINTER: *slot = address_of(&a->t); return 1;
    case SIZE: return put_integer(s.type, a->t.shape[s.dim], 0, slot);
    case STRIDE: return put_integer(s.type, a->t.strides[s.dim], 0, slot);
    case SCALAR: break;
    }
    if (a->kind == FLOAT) return s.type >= T_FLOAT16 && put_float(s.type, a->f, slot);
    if (s.type < T_FLOAT16) return put_integer(s.type, a->i, a->width == UINT64, slot);
    return a->width != UINT64 && put_float(s.type, (double)a->i, slot);
}

/* --- tensor maps

   A program (tensor_maps.program) is int64 numbers: pointer's slot, format, rank, interleave, swizzle,
   promotion, fill, alignment; box and element strides, innermost first; then the offset, the sizes and
   the strides but the innermost, each as constant, count, (slot, factor)... */

enum { MAP_BYTES = 128, MAP_ALIGN_BYTES = 64, MAX_RANK = 5 };
enum { P_POINTER, P_FORMAT, P_RANK, P_INTERLEAVE, P_SWIZZLE, P_PROMOTION, P_FILL, P_ALIGN, P_BOX };

typedef struct { int64_t *numbers; Py_ssize_t count; } Program;
typedef struct { _Alignas(MAP_ALIGN_BYTES) char bytes[MAP_BYTES]; } Map;

static int program_is_whole(const Program *p, const Slot *slots, Py_ssize_t slot_count)
{
    if (p->count < P_BOX) return 0;
    int64_t rank = p->numbers[P_RANK], pointer = p->numbers[P_POINTER];
    if (rank < 1 || rank > MAX_RANK || pointer < 0 || pointer >= slot_count) return 0;
    if (slots[pointer].source != POINTER) return 0;
    Py_ssize_t at = P_BOX + 2 * (Py_ssize_t)rank;
    for (int64_t form = 0; form < 2 * rank; form++) {
        if (p->count - at < 2) return 0;
        int64_t terms = p->numbers[at + 1];
        at += 2;
        if (terms < 0 || terms > (p->count - at) / 2) return 0;
        for (int64_t i = 0; i < terms; i++, at += 2)
            if (p->numbers[at] < 0 || p->numbers[at] >= slot_count) return 0;
    }
    return at == p->count;
}

/* The next linear form of a program; False where a parameter is no integer, or the sum no int64. */
static int next_number(const int64_t **at, const Slot *slots, const Seen *seen, int64_t *out)
{
    int64_t sum = (*at)[0], terms = (*at)[1];
    *at += 2;
    for (; terms > 0; terms--, *at += 2) {
        Slot s = slots[(*at)[0]];
        const Seen *a = &seen[s.arg];
        int64_t value, part;
        if (s.source == SIZE) value = a->t.shape[s.dim];
        else if (s.source == STRIDE) value = a->t.strides[s.dim];
        else if (s.source == SCALAR && (a->kind == INT || a->kind == BOOL) && a->width != UINT64) value = a->i;
        else return 0;
        if (__builtin_mul_overflow(value, (*at)[1], &part) || __builtin_add_overflow(sum, part, &sum)) return 0;
    }
    *out = sum;
    return 1;
}

/* False where Python must say what is wrong. */
static int encode(const Program *p, EncodeTiled driver, const Slot *slots, const Seen *seen, Map *map)
{
    const int64_t *n = p->numbers, *at = n + P_BOX + 2 * n[P_RANK];
    uint32_t rank = (uint32_t)n[P_RANK], box[MAX_RANK], steps[MAX_RANK];
    uint64_t sizes[MAX_RANK], strides[MAX_RANK];
    int64_t offset, value;
    if (!next_number(&at, slots, seen, &offset)) return 0;
    for (uint32_t d = 0; d < rank; d++) {
        box[d] = (uint32_t)n[P_BOX + d];
        steps[d] = (uint32_t)n[P_BOX + rank + d];
        if (!next_number(&at, slots, seen, &value) || value < 1) return 0;
        sizes[d] = (uint64_t)value;
    }
    for (uint32_t d = 0; d + 1 < rank; d++) {
        if (!next_number(&at, slots, seen, &value)) return 0;
        if (sizes[d + 1] == 1) value = n[P_ALIGN]; /* never taken */
        if (value < 0 || value % n[P_ALIGN]) return 0;
        strides[d] = (uint64_t)value;
    }
    uint64_t address = address_of(&seen[slots[n[P_POINTER]].arg].t) + (uint64_t)offset;
    if (address % (uint64_t)n[P_ALIGN]) return 0;
    return driver(map, (int)n[P_FORMAT], rank, (void *)(uintptr_t)address, sizes, strides, box, steps,
                  (int)n[P_INTERLEAVE], (int)n[P_SWIZZLE], (int)n[P_PROMOTION], (int)n[P_FILL]) == 0;
}

/* --- records */

typedef struct {
    PyObject_HEAD
    PyObject *table; /* the dict the plan was found in */
    Py_ssize_t count;
    Check *checks;
    Config config;
    void *function;
    LaunchKernel launch;
    int device, callers_grid;
    PyObject *grid;      /* callable(*inputs) -> (x, y, z), or None */
    PyObject *device_of; /* callable() -> int, or None: one device */
    PyObject *failed;    /* callable(result, x, y, z) */
    PyObject *keep;
    uint32_t bound[3];
    Py_ssize_t slot_count, input_count;
    Slot slots[MAX_SLOTS];
    uint8_t inputs[MAX_ARGS]; /* the slots that the grid depends on */
    EncodeTiled encode;
    int map_count;
    Program maps[MAX_MAPS]; /* parameters behind the slots */
} Record;

static int record_traverse(Record *r, visitproc visit, void *arg)
{
    Py_VISIT(r->table);
    Py_VISIT(r->grid);
    Py_VISIT(r->device_of);
    Py_VISIT(r->failed);
    Py_VISIT(r->keep);
    if (r->checks)
        for (Py_ssize_t i = 0; i < r->count; i++) Py_VISIT(r->checks[i].value);
    return 0;
}

static int record_clear(Record *r)
{
    Py_CLEAR(r->table);
    Py_CLEAR(r->grid);
    Py_CLEAR(r->device_of);
    Py_CLEAR(r->failed);
    Py_CLEAR(r->keep);
    if (r->checks)
        for (Py_ssize_t i = 0; i < r->count; i++) Py_CLEAR(r->checks[i].value);
    return 0;
}

static void record_dealloc(Record *r)
{
    PyObject_GC_UnTrack(r);
    record_clear(r);
    if (r->checks)
        for (Py_ssize_t i = 0; i < r->count; i++) PyMem_Free(r->checks[i].shape);
    PyMem_Free(r->checks);
    for (int i = 0; i < r->map_count; i++) PyMem_Free(r->maps[i].numbers);
    PyObject_GC_Del(r);
}

static PyTypeObject RecordType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tilejit.runtime._launcher._Record",
    .tp_basicsize = sizeof(Record),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_traverse = (traverseproc)record_traverse,
    .tp_clear = (inquiry)record_clear,
    .tp_dealloc = (destructor)record_dealloc,
};

static int remember(Check *c, const Param *p, const Seen *s)
{
    c->kind = s->kind;
    c->width = s->width;
    if (s->kind == CONST) c->value = Py_NewRef(s->object);
    if (s->kind != TENSOR) return 1;
    size_t bytes = sizeof(int64_t) * (size_t)s->t.ndim;
    c->ndim = s->t.ndim;
    c->dtype = s->t.dtype;
    c->device = s->t.device;
    c->align = alignment_class(address_of(&s->t), p->align_mask);
    c->contiguous = is_contiguous(&s->t);
    c->shape = PyMem_Malloc(2 * bytes + 1);
    if (!c->shape) return 0;
    c->strides = c->shape + s->t.ndim;
    if (bytes) {
        memcpy(c->shape, s->t.shape, bytes);
        memcpy(c->strides, s->t.strides, bytes);
    }
    return 1;
}

/* The record of arguments just seen, without a plan yet. */
static Record *record_new(const Param *params, Py_ssize_t count, const Seen *seen, PyObject *table)
{
    Record *r = PyObject_GC_New(Record, &RecordType);
    if (!r) return NULL;
    memset((char *)r + sizeof(PyObject), 0, sizeof(Record) - sizeof(PyObject));
    r->table = Py_NewRef(table);
    r->checks = PyMem_Calloc((size_t)count + 1, sizeof(Check));
    int ok = r->checks != NULL;
    for (Py_ssize_t i = 0; ok && i < count; i++) {
        r->count = i + 1;
        ok = remember(&r->checks[i], &params[i], &seen[i]);
    }
    PyObject_GC_Track(r);
    if (ok) return r;
    Py_DECREF(r);
    PyErr_NoMemory();
    return NULL;
}

static int take_map(Record *r, PyObject *program)
{
    Py_ssize_t bytes = PyBytes_Check(program) ? PyBytes_GET_SIZE(program) : 0;
    Program p = {PyMem_Malloc((size_t)bytes + 1), bytes / (Py_ssize_t)sizeof(int64_t)};
    if (!p.numbers) {
        PyErr_NoMemory();
        return 0;
    }
    if (bytes) memcpy(p.numbers, PyBytes_AS_STRING(program), (size_t)bytes);
    r->maps[r->map_count++] = p;
    if (program_is_whole(&p, r->slots, r->slot_count)) return 1;
    PyErr_SetString(PyExc_ValueError, "a tensor map that cannot be read");
    return 0;
}

/* facts: what native.facts gives. */
static int record_complete(Record *r, PyObject *facts)
{
    const char *config, *slots, *inputs;
    Py_ssize_t config_bytes, slot_bytes;
    unsigned long long function, launch, encode;
    PyObject *grid, *maps, *device_of, *failed, *keep;
    if (!PyArg_ParseTuple(facts, "y#KKipOy#(III)y#KO!OOO", &config, &config_bytes, &function, &launch,
                          &r->device, &r->callers_grid, &grid, &inputs, &r->input_count,
                          &r->bound[0], &r->bound[1], &r->bound[2], &slots, &slot_bytes, &encode,
                          &PyTuple_Type, &maps, &device_of, &failed, &keep))
        return 0;
    r->slot_count = slot_bytes / (Py_ssize_t)sizeof(Slot);
    if (config_bytes != sizeof(Config) || r->slot_count > MAX_SLOTS || r->input_count > MAX_ARGS ||
        PyTuple_GET_SIZE(maps) > MAX_MAPS) {
        PyErr_SetString(PyExc_ValueError, "facts that do not fit a record");
        return 0;
    }
    memcpy(&r->config, config, sizeof(Config));
    memcpy(r->slots, slots, (size_t)slot_bytes);
    memcpy(r->inputs, inputs, (size_t)r->input_count);
    for (Py_ssize_t i = 0; i < r->slot_count; i++) {
        Slot s = r->slots[i];
        int tensor = s.arg < r->count && r->checks[s.arg].kind == TENSOR;
        if (s.arg >= r->count || tensor != (s.source != SCALAR) ||
            (s.source > SCALAR && s.dim >= r->checks[s.arg].ndim)) {
            PyErr_SetString(PyExc_ValueError, "a slot without its argument");
            return 0;
        }
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(maps); i++)
        if (!take_map(r, PyTuple_GET_ITEM(maps, i))) return 0;
    r->encode = (EncodeTiled)(uintptr_t)encode;
    r->function = (void *)(uintptr_t)function;
    r->launch = (LaunchKernel)(uintptr_t)launch;
    r->grid = Py_NewRef(grid);
    r->device_of = Py_NewRef(device_of);
    r->failed = Py_NewRef(failed);
    r->keep = Py_NewRef(keep);
    return 1;
}

/* --- the launcher */

typedef struct { PyObject *container, *name, *value; } Watched; /* name NULL: a closure cell */
typedef struct { uint8_t arg, dim, first_arg, first_dim; } Equal; /* two sizes of one name */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *python;  /* the generated function */
    PyObject *resolve; /* callable(entry, *arguments) -> facts or None */
    PyObject *table;   /* the kernel's; NULL: read from the entry, as its grid is */
    PyObject *tensor_class, *parameter_class;
    ReadTensor read_tensor;
    ReadStream read_stream;
    Py_ssize_t count, watched_count, equal_count, record_count;
    Param *params;
    Watched *watched;
    Equal *equals;
    Record *records[MAX_RECORDS]; /* latest first */
    int credit; /* spent on learning, earned by hits (and slowly by misses): no call pattern can make
                   every call pay for learning */
    long long hits;
} Launcher;

static PyObject *name_table, *name_grid, *name_evaluate;

static int outside_unchanged(const Launcher *l)
{
    for (Py_ssize_t i = 0; i < l->watched_count; i++) {
        const Watched *w = &l->watched[i];
        PyObject *now;
        if (!w->name) {
            now = PyCell_GET(w->container);
        } else if (PyDict_CheckExact(w->container)) {
            now = PyDict_GetItemWithError(w->container, w->name);
        } else { /* a class's namespace: it keeps the value while we look at its identity only */
            now = PyObject_GetItem(w->container, w->name);
            Py_XDECREF(now);
        }
        if (now != w->value) {
            PyErr_Clear();
            return 0;
        }
    }
    return 1;
}

/* One value per parameter (borrowed); False for Python to diagnose or to fill in. */
static int collect(const Launcher *l, PyObject *const *args, Py_ssize_t given, PyObject *names,
                   PyObject **values)
{
    if (given > l->count) return 0;
    for (Py_ssize_t i = 0; i < l->count; i++) values[i] = i < given ? args[i] : NULL;
    for (Py_ssize_t k = 0; names && k < PyTuple_GET_SIZE(names); k++) {
        PyObject *name = PyTuple_GET_ITEM(names, k);
        Py_ssize_t i = given;
        while (i < l->count && l->params[i].name != name) i++;
        if (i == l->count || values[i]) return 0;
        values[i] = args[given + k];
    }
    for (Py_ssize_t i = given; i < l->count; i++) {
        if (!values[i]) values[i] = l->params[i].fallback;
        if (!values[i]) return 0;
    }
    return 1;
}

static int look(const Launcher *l, const Param *p, PyObject *o, Seen *s)
{
    PyTypeObject *type = Py_TYPE(o);
    s->object = o;
    s->width = INT32;
    if (p->constant) {
        s->kind = CONST;
    } else if ((PyObject *)type == l->tensor_class || (PyObject *)type == l->parameter_class) {
        s->kind = TENSOR;
        if (l->read_tensor(o, &s->t) != 0) {
            PyErr_Clear();
            return 0;
        }
        return s->t.device.type == DEVICE_CUDA && (s->t.ndim == 0 || (s->t.shape && s->t.strides));
    } else if (type == &PyLong_Type) {
        int overflow;
        s->kind = INT;
        s->i = PyLong_AsLongLongAndOverflow(o, &overflow);
        if (overflow > 0) {
            s->i = (int64_t)PyLong_AsUnsignedLongLong(o);
            s->width = UINT64;
            if (PyErr_Occurred()) {
                PyErr_Clear();
                return 0;
            }
        } else if (overflow < 0) {
            return 0;
        } else if (s->i < INT32_MIN || s->i > INT32_MAX) {
            s->width = INT64;
        }
    } else if (type == &PyFloat_Type) {
        s->kind = FLOAT;
        s->f = PyFloat_AS_DOUBLE(o);
    } else if (type == &PyBool_Type) {
        s->kind = BOOL;
        s->i = o == Py_True;
    } else if (o == Py_None) {
        s->kind = NONE;
    } else {
        return 0;
    }
    return 1;
}

static int look_at_all(const Launcher *l, PyObject *const *values, Seen *seen)
{
    for (Py_ssize_t i = 0; i < l->count; i++)
        if (!look(l, &l->params[i], values[i], &seen[i])) return 0;
    for (Py_ssize_t i = 0; i < l->equal_count; i++) {
        Equal e = l->equals[i];
        const Seen *a = &seen[e.arg], *b = &seen[e.first_arg];
        if (a->kind != TENSOR || b->kind != TENSOR) continue;
        if (e.dim >= a->t.ndim || e.first_dim >= b->t.ndim) return 0;
        if (a->t.shape[e.dim] != b->t.shape[e.first_dim]) return 0;
    }
    return 1;
}

static int record_matches(const Launcher *l, const Record *r, const Seen *seen, PyObject *table)
{
    if (r->table != table) return 0;
    for (Py_ssize_t i = 0; i < l->count; i++)
        if (!argument_matches(&r->checks[i], &l->params[i], &seen[i])) return 0;
    return 1;
}

static Record *find(Launcher *l, const Seen *seen, PyObject *table)
{
    for (Py_ssize_t i = 0; i < l->record_count; i++) {
        Record *r = l->records[i];
        if (!record_matches(l, r, seen, table)) continue;
        if (i) {
            memmove(l->records + 1, l->records, (size_t)i * sizeof *l->records);
            l->records[0] = r;
        }
        return r;
    }
    return NULL;
}

static void forget(Launcher *l, Record *r)
{
    for (Py_ssize_t i = 0; i < l->record_count; i++) {
        if (l->records[i] != r) continue;
        l->record_count--;
        memmove(l->records + i, l->records + i + 1, (size_t)(l->record_count - i) * sizeof *l->records);
        Py_DECREF(r);
        return;
    }
}

typedef enum { DONE, ERROR, PYTHON, OUTGROWN } Outcome;

static Outcome read_grid(const Record *r, PyObject *grid, uint32_t *out)
{
    if (!PyTuple_CheckExact(grid) || PyTuple_GET_SIZE(grid) != 3) return PYTHON;
    for (int axis = 0; axis < 3; axis++) {
        PyObject *part = PyTuple_GET_ITEM(grid, axis);
        int overflow;
        if (!PyLong_CheckExact(part)) return PYTHON;
        long long extent = PyLong_AsLongLongAndOverflow(part, &overflow);
        if (overflow || extent <= 0) return PYTHON;
        if (extent > (long long)r->bound[axis]) return OUTGROWN;
        out[axis] = (uint32_t)extent;
    }
    return DONE;
}

/* k[grid]: the entry's own grid, or its function of the arguments by name. */
static Outcome callers_grid(const Launcher *l, const Record *r, PyObject *entry,
                            PyObject *const *values, uint32_t *out)
{
    if (l->table) return PYTHON; /* k(...) of a kernel without a grid */
    PyObject *grid = PyObject_GetAttr(entry, name_grid);
    if (!grid) return ERROR;
    if (grid == Py_None) {
        Py_DECREF(grid);
        PyObject *names = PyDict_New();
        if (!names) return ERROR;
        for (Py_ssize_t i = 0; i < l->count; i++)
            if (PyDict_SetItem(names, l->params[i].name, values[i]) < 0) {
                Py_DECREF(names);
                return ERROR;
            }
        grid = PyObject_CallMethodOneArg(entry, name_evaluate, names);
        Py_DECREF(names);
        if (!grid) return ERROR;
    }
    Outcome outcome = read_grid(r, grid, out);
    Py_DECREF(grid);
    return outcome;
}

/* The kernel's grid where sizes or scalars enter it. */
static Outcome own_grid(const Record *r, PyObject *const *inputs, uint32_t *out)
{
    PyObject *grid = PyObject_Vectorcall(r->grid, inputs, (size_t)r->input_count, NULL);
    if (!grid) {
        PyErr_Clear(); /* Python computes it again and says what is wrong */
        return PYTHON;
    }
    Outcome outcome = read_grid(r, grid, out);
    Py_DECREF(grid);
    return outcome;
}

static PyObject *input(Slot s, const Seen *seen)
{
    const Seen *a = &seen[s.arg];
    if (s.source == SIZE) return PyLong_FromLongLong(a->t.shape[s.dim]);
    if (s.source == STRIDE) return PyLong_FromLongLong(a->t.strides[s.dim]);
    return Py_NewRef(a->object);
}

static Outcome launch(const Launcher *l, const Record *r, PyObject *entry, PyObject *const *values,
                      const Seen *seen)
{
    uint64_t block[MAX_SLOTS];
    void *pointers[MAX_SLOTS + MAX_MAPS];
    Map maps[MAX_MAPS];
    Config config = r->config;
    Outcome outcome = DONE;
    for (Py_ssize_t i = 0; i < r->slot_count; i++) {
        if (!put(r->slots[i], seen, &block[i])) return PYTHON;
        pointers[i] = &block[i];
    }
    for (int i = 0; i < r->map_count; i++) {
        if (!encode(&r->maps[i], r->encode, r->slots, seen, &maps[i])) return PYTHON;
        pointers[r->slot_count + i] = &maps[i];
    }
    /* Shapes are read before anything that could run other Python code. */
    if (r->callers_grid) {
        outcome = callers_grid(l, r, entry, values, config.grid);
    } else if (r->grid != Py_None) {
        PyObject *inputs[MAX_ARGS];
        Py_ssize_t n = 0;
        while (n < r->input_count && (inputs[n] = input(r->slots[r->inputs[n]], seen))) n++;
        outcome = n < r->input_count ? ERROR : own_grid(r, inputs, config.grid);
        for (Py_ssize_t i = 0; i < n; i++) Py_DECREF(inputs[i]);
    }
    if (outcome != DONE) return outcome;
    if (r->device_of != Py_None) {
        PyObject *device = PyObject_CallNoArgs(r->device_of);
        if (!device) return ERROR;
        long current = PyLong_AsLong(device);
        Py_DECREF(device);
        if (current == -1 && PyErr_Occurred()) return ERROR;
        if (current != r->device) return PYTHON;
    }
    if (l->read_stream(DEVICE_CUDA, r->device, &config.stream) != 0) {
        PyErr_Clear();
        return PYTHON;
    }
    int result;
    /* A full queue blocks in the driver; what drains it may need the GIL. */
    Py_BEGIN_ALLOW_THREADS
    result = r->launch(&config, r->function, pointers, NULL);
    Py_END_ALLOW_THREADS
    if (result == 0) return DONE;
    if (result == NOT_INITIALIZED || result == INVALID_CONTEXT) return PYTHON;
    PyObject *answer = PyObject_CallFunction(r->failed, "iIII", result, config.grid[0], config.grid[1],
                                             config.grid[2]);
    Py_XDECREF(answer);
    return answer ? DONE : ERROR;
}

/* After a launch by Python: remember the plan it took. Errors are reported, the launch has been made. */
static void learn(Launcher *l, PyObject *entry, PyObject *const *values, PyObject *table)
{
    Seen seen[MAX_ARGS];
    PyObject *stack[MAX_ARGS + 1];
    l->credit -= LEARNING_COSTS;
    if (!look_at_all(l, values, seen) || find(l, seen, table)) return;
    Record *r = record_new(l->params, l->count, seen, table);
    if (!r) goto failed;
    stack[0] = entry;
    memcpy(stack + 1, values, (size_t)l->count * sizeof *values);
    PyObject *facts = PyObject_Vectorcall(l->resolve, stack, (size_t)l->count + 1, NULL);
    int complete = facts && facts != Py_None && record_complete(r, facts);
    Py_XDECREF(facts);
    /* A thread may have changed anything while resolve ran: only what still matches is kept. */
    if (complete && look_at_all(l, values, seen) && !find(l, seen, table) &&
        record_matches(l, r, seen, table) && outside_unchanged(l)) {
        Record *oldest = l->record_count == MAX_RECORDS ? l->records[--l->record_count] : NULL;
        memmove(l->records + 1, l->records, (size_t)l->record_count * sizeof *l->records);
        l->records[0] = r;
        l->record_count++;
        Py_XDECREF(oldest);
    } else {
        Py_DECREF(r);
    }
failed:
    if (PyErr_Occurred()) PyErr_WriteUnraisable((PyObject *)l);
}

static PyObject *launcher_call(PyObject *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Launcher *l = (Launcher *)self;
    Py_ssize_t given = PyVectorcall_NARGS(flags);
    PyObject *values[MAX_ARGS];
    Seen seen[MAX_ARGS];
    PyObject *table = NULL, *result = NULL;
    int readable = 0;
    if (given >= 1 && collect(l, args + 1, given - 1, names, values)) {
        table = l->table ? Py_NewRef(l->table) : PyObject_GetAttr(args[0], name_table);
        if (!table) return NULL;
        readable = look_at_all(l, values, seen);
    }
    if (readable && outside_unchanged(l)) {
        Record *r = find(l, seen, table);
        if (r) {
            Py_INCREF(r);
            Outcome outcome = launch(l, r, args[0], values, seen);
            if (outcome == DONE) {
                Py_DECREF(r);
                l->hits++;
                if (l->credit < MOST_CREDIT) l->credit += LEARNING_COSTS;
                Py_DECREF(table);
                Py_RETURN_NONE;
            }
            if (outcome == ERROR) {
                Py_DECREF(r);
                Py_DECREF(table);
                return NULL;
            }
            if (outcome == OUTGROWN) {
                forget(l, r); /* Python makes a plan for larger grids, which replaces this one */
            } else {
                readable = 0; /* nothing to learn */
            }
            Py_DECREF(r);
        }
    }
    result = PyObject_Vectorcall(l->python, args, (size_t)given, names);
    if (result == Py_None && readable) {
        l->credit++;
        if (l->credit >= LEARNING_COSTS) learn(l, args[0], values, table);
    }
    Py_XDECREF(table);
    return result;
}

static PyObject *launcher_get(PyObject *self, PyObject *instance, PyObject *owner)
{
    (void)owner;
    return instance ? PyMethod_New(self, instance) : Py_NewRef(self);
}

static int launcher_traverse(Launcher *l, visitproc visit, void *arg)
{
    Py_VISIT(l->python);
    Py_VISIT(l->resolve);
    Py_VISIT(l->table);
    Py_VISIT(l->tensor_class);
    Py_VISIT(l->parameter_class);
    for (Py_ssize_t i = 0; i < l->count; i++) Py_VISIT(l->params[i].fallback);
    for (Py_ssize_t i = 0; i < l->watched_count; i++) {
        Py_VISIT(l->watched[i].container);
        Py_VISIT(l->watched[i].value);
    }
    for (Py_ssize_t i = 0; i < l->record_count; i++) Py_VISIT(l->records[i]);
    return 0;
}

static int launcher_clear(Launcher *l)
{
    Py_CLEAR(l->python);
    Py_CLEAR(l->resolve);
    Py_CLEAR(l->table);
    Py_CLEAR(l->tensor_class);
    Py_CLEAR(l->parameter_class);
    Py_ssize_t count = l->count, watched = l->watched_count;
    l->count = l->watched_count = l->equal_count = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_CLEAR(l->params[i].name);
        Py_CLEAR(l->params[i].fallback);
    }
    for (Py_ssize_t i = 0; i < watched; i++) {
        Py_CLEAR(l->watched[i].container);
        Py_CLEAR(l->watched[i].name);
        Py_CLEAR(l->watched[i].value);
    }
    while (l->record_count) {
        Record *r = l->records[--l->record_count];
        Py_DECREF(r);
    }
    return 0;
}

static void launcher_dealloc(Launcher *l)
{
    PyObject_GC_UnTrack(l);
    launcher_clear(l);
    PyMem_Free(l->params);
    PyMem_Free(l->watched);
    PyMem_Free(l->equals);
    PyObject_GC_Del(l);
}

/* --- construction */

static int take_param(Param *p, PyObject *row)
{
    PyObject *name, *fallback, *has_default;
    unsigned long long mask;
    unsigned int dynamic;
    if (!PyArg_ParseTuple(row, "UppKIOO", &name, &p->constant, &p->open, &mask, &dynamic, &has_default,
                          &fallback))
        return 0;
    p->align_mask = mask;
    p->dynamic = dynamic;
    p->name = Py_NewRef(name);
    PyUnicode_InternInPlace(&p->name);
    p->fallback = has_default == Py_True ? Py_NewRef(fallback) : NULL;
    return 1;
}

static int take_watched(Watched *w, PyObject *row)
{
    PyObject *container, *name, *value;
    if (!PyArg_ParseTuple(row, "OOO", &container, &name, &value)) return 0;
    if (name == Py_None && !PyCell_Check(container)) {
        PyErr_SetString(PyExc_TypeError, "a watched place without a name is a closure cell");
        return 0;
    }
    w->container = Py_NewRef(container);
    w->name = name == Py_None ? NULL : Py_NewRef(name);
    w->value = Py_NewRef(value);
    return 1;
}

static PyObject *launcher_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"python", "resolve", "table", "params", "watched", "equals",
                            "tensor_classes", "read_tensor", "read_stream", NULL};
    PyObject *python, *resolve, *table, *params, *watched, *tensor_class, *parameter_class;
    const char *equals;
    Py_ssize_t equal_bytes;
    unsigned long long read_tensor, read_stream;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOO!O!y#(OO)KK", names, &python, &resolve, &table,
                                     &PyTuple_Type, &params, &PyTuple_Type, &watched, &equals,
                                     &equal_bytes, &tensor_class, &parameter_class, &read_tensor,
                                     &read_stream))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(params), places = PyTuple_GET_SIZE(watched);
    if (count > MAX_ARGS) {
        PyErr_Format(PyExc_ValueError, "%zd parameters, at most %d", count, MAX_ARGS);
        return NULL;
    }
    Launcher *l = (Launcher *)type->tp_alloc(type, 0);
    if (!l) return NULL;
    l->vectorcall = launcher_call;
    l->python = Py_NewRef(python);
    l->resolve = Py_NewRef(resolve);
    l->table = table == Py_None ? NULL : Py_NewRef(table);
    l->tensor_class = Py_NewRef(tensor_class);
    l->parameter_class = Py_NewRef(parameter_class);
    l->read_tensor = (ReadTensor)(uintptr_t)read_tensor;
    l->read_stream = (ReadStream)(uintptr_t)read_stream;
    l->credit = MOST_CREDIT;
    l->params = PyMem_Calloc((size_t)count + 1, sizeof(Param));
    l->watched = PyMem_Calloc((size_t)places + 1, sizeof(Watched));
    l->equals = PyMem_Calloc((size_t)equal_bytes + 1, 1);
    if (!l->params || !l->watched || !l->equals) {
        PyErr_NoMemory();
        goto failed;
    }
    memcpy(l->equals, equals, (size_t)equal_bytes);
    for (; l->count < count; l->count++)
        if (!take_param(&l->params[l->count], PyTuple_GET_ITEM(params, l->count))) goto failed;
    for (; l->watched_count < places; l->watched_count++)
        if (!take_watched(&l->watched[l->watched_count], PyTuple_GET_ITEM(watched, l->watched_count)))
            goto failed;
    l->equal_count = equal_bytes / (Py_ssize_t)sizeof(Equal);
    for (Py_ssize_t i = 0; i < l->equal_count; i++)
        if (l->equals[i].arg >= count || l->equals[i].first_arg >= count) {
            PyErr_SetString(PyExc_ValueError, "equal sizes of no parameter");
            goto failed;
        }
    return (PyObject *)l;
failed:
    Py_DECREF(l);
    return NULL;
}

static PyObject *launcher_hits(Launcher *l, void *unused)
{
    (void)unused;
    return PyLong_FromLongLong(l->hits);
}

static PyObject *launcher_records(Launcher *l, void *unused)
{
    (void)unused;
    return PyLong_FromSsize_t(l->record_count);
}

static PyGetSetDef launcher_attributes[] = {
    {"hits", (getter)launcher_hits, NULL, "Launches made without Python.", NULL},
    {"records", (getter)launcher_records, NULL, "Records held.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject LauncherType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tilejit.runtime._launcher.Launcher",
    .tp_doc = "Launcher(python, resolve, table, params, watched, equals, tensor_classes, read_tensor, read_stream)",
    .tp_basicsize = sizeof(Launcher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_vectorcall_offset = offsetof(Launcher, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = launcher_get,
    .tp_new = launcher_new,
    .tp_traverse = (traverseproc)launcher_traverse,
    .tp_clear = (inquiry)launcher_clear,
    .tp_dealloc = (destructor)launcher_dealloc,
    .tp_getset = launcher_attributes,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "tilejit.runtime._launcher",
    .m_doc = "The warm launch in C; see native.py.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__launcher(void)
{
    name_table = PyUnicode_InternFromString("table");
    name_grid = PyUnicode_InternFromString("grid");
    name_evaluate = PyUnicode_InternFromString("evaluate");
    if (!name_table || !name_grid || !name_evaluate) return NULL;
    if (PyType_Ready(&RecordType) < 0) return NULL;
    PyObject *m = PyModule_Create(&module);
    if (m && (PyModule_AddType(m, &LauncherType) < 0 ||
              PyModule_AddIntConstant(m, "VERSION", VERSION) < 0))
        Py_CLEAR(m);
    return m;
}
