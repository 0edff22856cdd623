/* As much of the driver's cuda.h as a kernel's header uses, with functions that print what they are given.
 * The program says before it includes this: PARAMETER_SIZES, bytes of each parameter in order; MAPS behind them. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 } CUresult;
typedef unsigned long long CUdeviceptr;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef uint64_t cuuint64_t;
typedef uint32_t cuuint32_t;
typedef struct CUtensorMap_st { cuuint64_t opaque[16]; } CUtensorMap;
typedef int CUtensorMapDataType, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill;
typedef enum {
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14
} CUfunction_attribute;
typedef enum {
    CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6
} CUlaunchAttributeID;
typedef union {
    char pad[64];
    int cooperative;
    struct { unsigned x, y, z; } clusterDim;
    int programmaticStreamSerializationAllowed;
} CUlaunchAttributeValue;
typedef struct { CUlaunchAttributeID id; char pad[4]; CUlaunchAttributeValue value; } CUlaunchAttribute;
typedef struct {
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned numAttrs;
} CUlaunchConfig;

static inline CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    (void)function;
    printf("attribute %d %d\n", (int)attribute, value);
    return CUDA_SUCCESS;
}

static inline CUresult cuTensorMapEncodeTiled(
    CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *start, const cuuint64_t *sizes,
    const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave interleave,
    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    (void)map;
    printf("map %d %llu", type, (unsigned long long)(uintptr_t)start);
    for (cuuint32_t d = 0; d < rank; d++)
        printf(" %llu/%u/%u", (unsigned long long)sizes[d], box[d], steps[d]);
    for (cuuint32_t d = 0; d + 1 < rank; d++)
        printf(" stride %llu", (unsigned long long)strides[d]);
    printf(" modes %d %d %d %d\n", interleave, swizzle, promotion, fill);
    return CUDA_SUCCESS;
}

static inline CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    static const size_t sizes[] = {PARAMETER_SIZES 0};
    (void)function;
    (void)extra;
    printf("launch %u %u %u block %u %u %u shared %u stream %llu", config->gridDimX, config->gridDimY, config->gridDimZ,
           config->blockDimX, config->blockDimY, config->blockDimZ, config->sharedMemBytes,
           (unsigned long long)(uintptr_t)config->hStream);
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *a = &config->attrs[i];
        if (a->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            printf(" cluster %u %u %u", a->value.clusterDim.x, a->value.clusterDim.y, a->value.clusterDim.z);
        else
            printf(" attribute %d %d", (int)a->id, a->value.cooperative);
    }
    printf("\n");
    for (size_t i = 0; sizes[i]; i++) {
        printf("parameter");
        for (size_t b = 0; b < sizes[i]; b++)
            printf(" %02x", ((const unsigned char *)parameters[i])[b]);
        printf("\n");
    }
    return CUDA_SUCCESS;
}
