/*
 * The stand-in of cuBLASLt: which products are taken (one function of descriptors and algorithm), and a few algorithms
 * that differ in the order of their sums.
 */
#include "cublaslt_inside.h"
#include "runtime.h"

#include <algorithm>
#include <new>
#include <stdlib.h>
#include <string.h>

using namespace emu;

namespace {

const uint32_t tiles[] = {CUBLASLT_MATMUL_TILE_64x64, CUBLASLT_MATMUL_TILE_128x64, CUBLASLT_MATMUL_TILE_128x128};
const uint32_t stages[] = {CUBLASLT_MATMUL_STAGES_32x4, CUBLASLT_MATMUL_STAGES_64x3};
enum { MAX_SPLIT_K = 16 };

template <typename T, typename O> T &inside(O *opaque) {
    return *reinterpret_cast<T *>(opaque);
}
template <typename T, typename O> const T &inside(const O *opaque) {
    return *reinterpret_cast<const T *>(opaque);
}

std::set<cublasLtHandle_t> &handles() {
    static std::set<cublasLtHandle_t> *all = new std::set<cublasLtHandle_t>;
    return *all;
}

bool known_handle(cublasLtHandle_t handle) {
    Lock lock(runtime().mutex);
    return handles().count(handle) > 0;
}

cublasStatus_t refuse(cublasStatus_t status, const char *why) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    r.report = std::string("cuBLASLt: ") + why + " (" + cublasLtGetStatusName(status) + ")";
    if (r.options.verbose) {
        fprintf(stderr, "emulator: %s\n", r.report.c_str());
    }
    return status;
}

/* ---- what is taken ---- */

/* Types of cuBLASLt's table; NULL: taken, else why not. */
const char *check_types(cublasComputeType_t compute, int scale, int a, int b, int c, int d) {
    if (a != b) {
        return "A and B of different types";
    }
    if (c != d) {
        return "C and D of different types";
    }
    bool f32_compute = compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_PEDANTIC;
    if (compute == CUBLAS_COMPUTE_32I || compute == CUBLAS_COMPUTE_32I_PEDANTIC) {
        if (a != CUDA_R_8I) {
            return "integer sums of other types than int8";
        }
        return (scale == CUDA_R_32I && d == CUDA_R_32I) || (scale == CUDA_R_32F && d == CUDA_R_8I)
                   ? nullptr
                   : "int8 products give int32 (scale int32) or int8 (scale float)";
    }
    if (scale != CUDA_R_32F) {
        return "a scale of another type than the sums'";
    }
    if (a == CUDA_R_8I) {
        return f32_compute && d == CUDA_R_32F ? nullptr : "int8 products give no 16-bit floats";
    }
    if (a == CUDA_R_16BF || a == CUDA_R_16F) {
        return f32_compute && (d == a || d == CUDA_R_32F) ? nullptr : "16-bit floats give their own type or F32";
    }
    if (a == CUDA_R_32F && d == CUDA_R_32F && (f32_compute || compute == CUBLAS_COMPUTE_32F_FAST_TF32)) {
        return nullptr;
    }
    return "a combination of types that is not in the table";
}

/* Shapes that do not fit each other are CUBLAS_STATUS_INVALID_VALUE, what is not offered CUBLAS_STATUS_NOT_SUPPORTED.
 */
cublasStatus_t check_problem(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                             cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, Problem *out) {
    if (!desc || !a || !b || !c || !d) {
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "a descriptor is missing");
    }
    Problem p = {
        inside<Desc>(desc), inside<Layout>(a), inside<Layout>(b), inside<Layout>(c), inside<Layout>(d), 0, 0, 0};
    bool ta = p.desc.transa != CUBLAS_OP_N, tb = p.desc.transb != CUBLAS_OP_N;
    p.m = ta ? p.a.cols : p.a.rows;
    p.k = ta ? p.a.rows : p.a.cols;
    p.n = tb ? p.b.rows : p.b.cols;
    if ((tb ? p.b.cols : p.b.rows) != p.k || p.d.rows != p.m || p.d.cols != p.n || p.c.rows != p.m || p.c.cols != p.n) {
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "shapes of A, B, C, D do not fit each other");
    }
    if (p.m == 0 || p.n == 0 || p.k == 0) {
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "an empty matrix");
    }
    for (const Layout *l : {&p.a, &p.b, &p.c, &p.d}) {
        if (l->order != CUBLASLT_ORDER_COL && l->order != CUBLASLT_ORDER_ROW) {
            return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "layouts of Turing (COL32 and its like)");
        }
        if (l->batch != 1) {
            return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "batches: the emulator has none");
        }
        if (l->ld < int64_t(l->order == CUBLASLT_ORDER_COL ? l->rows : l->cols)) {
            return refuse(CUBLAS_STATUS_INVALID_VALUE, "a leading dimension shorter than a column");
        }
    }
    const char *why = check_types(p.desc.compute, p.desc.scale, p.a.type, p.b.type, p.c.type, p.d.type);
    if (why) {
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, why);
    }
    if (p.desc.transc != CUBLAS_OP_N) {
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "a transposed C");
    }
    bool integer = p.d.type == CUDA_R_32I, bias = p.desc.epilogue == CUBLASLT_EPILOGUE_BIAS;
    if ((p.desc.epilogue != CUBLASLT_EPILOGUE_DEFAULT && !bias) || (bias && integer)) {
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, integer ? "an epilogue behind int32 sums" : "an epilogue but bias");
    }
    int bias_type = p.desc.bias_type >= 0 ? p.desc.bias_type : p.d.type == CUDA_R_8I ? int(CUDA_R_32F) : int(p.d.type);
    if (bias && bias_type != CUDA_R_32F && bias_type != p.d.type && bias_type != p.a.type) {
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "a bias of another type than A, D or F32");
    }
    p.desc.bias_type = bias_type;
    bool vector = p.desc.pointer_mode == CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST ||
                  p.desc.pointer_mode == CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_ZERO;
    if (p.desc.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE_VECTOR || (vector && p.d.type != CUDA_R_8I)) {
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "a vector of alpha for another output than int8");
    }
    if (is_int8(p)) {
        bool columns = true;
        for (const Layout *l : {&p.a, &p.b, &p.c, &p.d}) {
            columns &= l->order == CUBLASLT_ORDER_COL && l->ld % 4 == 0;
        }
        if (!ta || tb || !columns || p.m % 4 != 0 || p.k % 4 != 0) {
            return refuse(CUBLAS_STATUS_NOT_SUPPORTED,
                          "int8 wants A transposed, B not, and m, k and leading dimensions of multiples of 4");
        }
    }
    *out = p;
    return CUBLAS_STATUS_SUCCESS;
}

/* Bytes that the algorithm wants pointers and columns aligned to. */
size_t alignment_of(const Algo &algo, int type) {
    return algo.id == ALGO_TILED ? 16 : type == CUDA_R_8I ? 4 : size_of(type);
}

bool contains(const uint32_t *list, size_t n, uint32_t v) {
    return std::find(list, list + n, v) != list + n;
}

/* CUBLAS_STATUS_SUCCESS, or why the algorithm does not take the problem. */
cublasStatus_t algo_status(const Algo &a, const Problem &p, const char **why) {
    bool plain = a.id == ALGO_PLAIN;
    if (a.id != ALGO_TILED && !plain) {
        *why = "an algorithm that was not initialised";
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (a.input != int32_t(p.a.type)) {
        *why = "an algorithm of other types";
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (plain ? a.tile != 0 || a.stages != 0 || a.split_k != 1
              : !contains(tiles, 3, a.tile) || !contains(stages, 2, a.stages) || a.split_k < 1 ||
                    a.split_k > MAX_SPLIT_K) {
        *why = "a tile, stages or split-K that the algorithm does not have";
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (a.reduction != (a.split_k > 1 ? uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) : 0u) || a.swizzle > 1 ||
        a.custom != 0 || a.inner != 0 || a.cluster != 0) {
        *why = "a configuration that the algorithm does not have";
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    for (const Layout *l : {&p.a, &p.b, &p.c, &p.d}) {
        if (size_t(l->ld) * size_of(l->type) % alignment_of(a, l->type) != 0) {
            *why = "a leading dimension off the alignment of the algorithm";
            return CUBLAS_STATUS_NOT_SUPPORTED;
        }
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_algo(const Algo &a, const Problem &p) {
    const char *why;
    cublasStatus_t status = algo_status(a, p, &why);
    return status == CUBLAS_STATUS_SUCCESS ? status : refuse(status, why);
}

float waves_of(const Algo &a, const Problem &p, int sm_count) {
    uint64_t tm = a.tile == CUBLASLT_MATMUL_TILE_64x64 || a.id == ALGO_PLAIN ? 64 : 128;
    uint64_t tn = a.tile == CUBLASLT_MATMUL_TILE_128x128 ? 128 : 64;
    return float((p.m + tm - 1) / tm * ((p.n + tn - 1) / tn) * uint64_t(a.split_k)) / float(sm_count);
}

/* ---- attributes ---- */

cublasStatus_t set(void *field, size_t size, const void *buf, size_t given) {
    if (!buf || given != size) {
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "an attribute of another size");
    }
    memcpy(field, buf, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t get(const void *field, size_t size, void *buf, size_t given, size_t *written) {
    if (given == 0 && written) {
        *written = size;
        return CUBLAS_STATUS_SUCCESS;
    }
    if (!buf || given < size) {
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "no place for an attribute");
    }
    memcpy(buf, field, size);
    if (written) {
        *written = size;
    }
    return CUBLAS_STATUS_SUCCESS;
}

struct Field {
    void *at;
    size_t size;
};

Field layout_field(Layout &l, int attr) {
    switch (attr) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
        return {&l.type, 4};
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
        return {&l.order, 4};
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
        return {&l.rows, 8};
    case CUBLASLT_MATRIX_LAYOUT_COLS:
        return {&l.cols, 8};
    case CUBLASLT_MATRIX_LAYOUT_LD:
        return {&l.ld, 8};
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return {&l.batch, 4};
    default:
        return {nullptr, 0};
    }
}

Field desc_field(Desc &d, int attr) {
    switch (attr) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
        return {&d.compute, 4};
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
        return {&d.scale, 4};
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
        return {&d.pointer_mode, 4};
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return {&d.transa, 4};
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return {&d.transb, 4};
    case CUBLASLT_MATMUL_DESC_TRANSC:
        return {&d.transc, 4};
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return {&d.epilogue, 4};
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return {&d.bias, sizeof d.bias};
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return {&d.bias_type, 4};
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
        return {&d.sm_count, 4};
    default:
        return {nullptr, 0};
    }
}

Field algo_field(Algo &a, int attr) {
    switch (attr) {
    case CUBLASLT_ALGO_CONFIG_ID:
        return {&a.id, 4};
    case CUBLASLT_ALGO_CONFIG_TILE_ID:
        return {&a.tile, 4};
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM:
        return {&a.split_k, 4};
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME:
        return {&a.reduction, 4};
    case CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING:
        return {&a.swizzle, 4};
    case CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION:
        return {&a.custom, 4};
    case CUBLASLT_ALGO_CONFIG_STAGES_ID:
        return {&a.stages, 4};
    case CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID:
        return {&a.inner, 2};
    case CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID:
        return {&a.cluster, 2};
    default:
        return {nullptr, 0};
    }
}

cublasLtMatmulAlgo_t opaque(const Algo &a) {
    cublasLtMatmulAlgo_t o = {};
    memcpy(&o, &a, sizeof a);
    return o;
}

/* What the heuristic offers, the best first: few columns want split-K, many want big tiles. */
std::vector<Algo> candidates(const Problem &p) {
    int32_t type = int32_t(p.a.type);
    uint32_t reduce = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    std::vector<Algo> list;
    for (size_t t = 0; t < 3; t++) {
        size_t tile = p.n > 64 ? 2 - t : t;
        list.push_back({ALGO_TILED, tiles[tile], 1, 0, 0, 0, stages[tile % 2], 0, 0, type});
    }
    if (p.k >= 256) {
        Algo split = {ALGO_TILED, tiles[1], p.n > 16 ? 2 : 4, reduce, 0, 0, stages[1], 0, 0, type};
        list.insert(p.n > 64 ? list.end() : list.begin(), split);
    }
    list.push_back({ALGO_PLAIN, 0, 1, 0, 0, 0, 0, 0, 0, type});
    return list;
}

cublasStatus_t status_of(cudaError_t error) {
    switch (error) {
    case cudaSuccess:
        return CUBLAS_STATUS_SUCCESS;
    case cudaErrorMemoryAllocation:
        return CUBLAS_STATUS_ALLOC_FAILED;
    case cudaErrorNotSupported:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    case cudaErrorInvalidResourceHandle:
        return CUBLAS_STATUS_INVALID_VALUE;
    default:
        return CUBLAS_STATUS_EXECUTION_FAILED;
    }
}

} // namespace

extern "C" {

const char *cublasLtGetStatusName(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
        return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
        return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
        return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR:
        return "CUBLAS_STATUS_LICENSE_ERROR";
    }
    return "CUBLAS_STATUS_UNKNOWN";
}

const char *cublasLtGetStatusString(cublasStatus_t status) {
    return cublasLtGetStatusName(status);
}

size_t cublasLtGetVersion(void) {
    return CUBLAS_VERSION;
}

size_t cublasLtGetCudartVersion(void) {
    return CUDART_VERSION;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *lightHandle) {
    Call c;
    if (!lightHandle) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (c.error != cudaSuccess) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    *lightHandle = new_handle<cublasLtHandle_t>(c.r);
    handles().insert(*lightHandle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t lightHandle) {
    Lock lock(runtime().mutex);
    return handles().erase(lightHandle) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *matLayout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
    if (!matLayout) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    auto *o = new (std::nothrow) cublasLtMatrixLayoutOpaque_t();
    if (!o) {
        return CUBLAS_STATUS_ALLOC_FAILED;
    }
    new (o) Layout{type, rows, cols, ld, CUBLASLT_ORDER_COL, 1};
    *matLayout = o;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t matLayout) {
    delete matLayout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t matLayout, cublasLtMatrixLayoutAttribute_t attr,
                                                const void *buf, size_t sizeInBytes) {
    if (attr == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET && sizeInBytes == 8) {
        return CUBLAS_STATUS_SUCCESS;
    }
    Field f = matLayout ? layout_field(inside<Layout>(matLayout), attr) : Field{};
    return f.at ? set(f.at, f.size, buf, sizeInBytes) : refuse(CUBLAS_STATUS_INVALID_VALUE, "an attribute of a layout");
}

cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t matLayout, cublasLtMatrixLayoutAttribute_t attr,
                                                void *buf, size_t sizeInBytes, size_t *sizeWritten) {
    Field f = matLayout ? layout_field(inside<Layout>(matLayout), attr) : Field{};
    return f.at ? get(f.at, f.size, buf, sizeInBytes, sizeWritten)
                : refuse(CUBLAS_STATUS_INVALID_VALUE, "an attribute of a layout");
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *matmulDesc, cublasComputeType_t computeType,
                                        cudaDataType_t scaleType) {
    if (!matmulDesc) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    auto *o = new (std::nothrow) cublasLtMatmulDescOpaque_t();
    if (!o) {
        return CUBLAS_STATUS_ALLOC_FAILED;
    }
    new (o) Desc{computeType, scaleType,   CUBLASLT_POINTER_MODE_HOST, CUBLAS_OP_N,
                 CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,  -1,
                 0,           nullptr};
    *matmulDesc = o;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmulDesc) {
    delete matmulDesc;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmulDesc, cublasLtMatmulDescAttributes_t attr,
                                              const void *buf, size_t sizeInBytes) {
    Field f = matmulDesc ? desc_field(inside<Desc>(matmulDesc), attr) : Field{};
    return f.at ? set(f.at, f.size, buf, sizeInBytes)
                : refuse(CUBLAS_STATUS_INVALID_VALUE, "an attribute of a product");
}

cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t matmulDesc, cublasLtMatmulDescAttributes_t attr,
                                              void *buf, size_t sizeInBytes, size_t *sizeWritten) {
    Field f = matmulDesc ? desc_field(inside<Desc>(matmulDesc), attr) : Field{};
    return f.at ? get(f.at, f.size, buf, sizeInBytes, sizeWritten)
                : refuse(CUBLAS_STATUS_INVALID_VALUE, "an attribute of a product");
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *pref) {
    if (!pref) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    auto *o = new (std::nothrow) cublasLtMatmulPreferenceOpaque_t();
    if (!o) {
        return CUBLAS_STATUS_ALLOC_FAILED;
    }
    new (o) Preference{0, CUBLASLT_SEARCH_BEST_FIT, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
    *pref = o;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref) {
    delete pref;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t attr, const void *buf,
                                                    size_t sizeInBytes) {
    if (!pref) {
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "no preference");
    }
    Preference &p = inside<Preference>(pref);
    switch (attr) {
    case CUBLASLT_MATMUL_PREF_SEARCH_MODE:
        return set(&p.search, 4, buf, sizeInBytes);
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set(&p.workspace, 8, buf, sizeInBytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return set(&p.reduction, 4, buf, sizeInBytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set(&p.align[attr - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], 4, buf, sizeInBytes);
    case CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT:
    case CUBLASLT_MATMUL_PREF_IMPL_MASK:
        break;
    }
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "a preference that the emulator does not know");
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t operationDesc,
                                              cublasLtMatrixLayout_t Adesc, cublasLtMatrixLayout_t Bdesc,
                                              cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
                                              cublasLtMatmulPreference_t preference, int requestedAlgoCount,
                                              cublasLtMatmulHeuristicResult_t heuristicResultsArray[],
                                              int *returnAlgoCount) {
    if (!known_handle(lightHandle)) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    if (!preference || requestedAlgoCount <= 0 || !heuristicResultsArray || !returnAlgoCount) {
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "nothing is asked of the heuristic");
    }
    Problem p;
    *returnAlgoCount = 0;
    cublasStatus_t status = check_problem(operationDesc, Adesc, Bdesc, Cdesc, Ddesc, &p);
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    const Preference &pref = inside<Preference>(preference);
    for (const Algo &algo : candidates(p)) {
        bool aligned = true;
        const char *why;
        const int types[4] = {p.a.type, p.b.type, p.c.type, p.d.type};
        for (size_t i = 0; i < 4; i++) {
            aligned &= pref.align[i] % alignment_of(algo, types[i]) == 0;
        }
        if (aligned && *returnAlgoCount < requestedAlgoCount && workspace_of(algo, p) <= pref.workspace &&
            (algo.reduction & ~pref.reduction) == 0 && algo_status(algo, p, &why) == CUBLAS_STATUS_SUCCESS) {
            cublasLtMatmulHeuristicResult_t result = {};
            result.algo = opaque(algo);
            result.workspaceSize = workspace_of(algo, p);
            result.state = CUBLAS_STATUS_SUCCESS;
            result.wavesCount = waves_of(algo, p, runtime().options.sm_count);
            heuristicResultsArray[(*returnAlgoCount)++] = result;
        }
    }
    return *returnAlgoCount > 0 ? CUBLAS_STATUS_SUCCESS
                                : refuse(CUBLAS_STATUS_NOT_SUPPORTED, "no algorithm takes these alignments");
}

cublasStatus_t cublasLtMatmulAlgoGetIds(cublasLtHandle_t lightHandle, cublasComputeType_t computeType,
                                        cudaDataType_t scaleType, cudaDataType_t Atype, cudaDataType_t Btype,
                                        cudaDataType_t Ctype, cudaDataType_t Dtype, int requestedAlgoCount,
                                        int algoIdsArray[], int *returnAlgoCount) {
    if (!known_handle(lightHandle)) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    if (requestedAlgoCount <= 0 || !algoIdsArray || !returnAlgoCount) {
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "no place for numbers of algorithms");
    }
    const char *why = check_types(computeType, scaleType, Atype, Btype, Ctype, Dtype);
    if (why) {
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, why);
    }
    const int ids[] = {ALGO_PLAIN, ALGO_TILED};
    *returnAlgoCount = std::min(2, requestedAlgoCount);
    memcpy(algoIdsArray, ids, sizeof(int) * size_t(*returnAlgoCount));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t lightHandle, cublasComputeType_t computeType,
                                      cudaDataType_t scaleType, cudaDataType_t Atype, cudaDataType_t Btype,
                                      cudaDataType_t Ctype, cudaDataType_t Dtype, int algoId,
                                      cublasLtMatmulAlgo_t *algo) {
    if (!known_handle(lightHandle)) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    if (!algo || (algoId != ALGO_PLAIN && algoId != ALGO_TILED)) {
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "a number of an algorithm that does not exist");
    }
    const char *why = check_types(computeType, scaleType, Atype, Btype, Ctype, Dtype);
    if (why) {
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, why);
    }
    *algo = opaque({algoId, 0, 1, 0, 0, 0, 0, 0, 0, int32_t(Atype)});
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t operationDesc,
                                       cublasLtMatrixLayout_t Adesc, cublasLtMatrixLayout_t Bdesc,
                                       cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
                                       const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result) {
    if (!known_handle(lightHandle)) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    if (!algo || !result) {
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "no algorithm to check");
    }
    Problem p;
    cublasStatus_t status = check_problem(operationDesc, Adesc, Bdesc, Cdesc, Ddesc, &p);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = check_algo(inside<Algo>(algo), p);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        *result = {};
        result->algo = *algo;
        result->workspaceSize = workspace_of(inside<Algo>(algo), p);
        result->wavesCount = waves_of(inside<Algo>(algo), p, runtime().options.sm_count);
    }
    return status;
}

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                 cublasLtMatmulAlgoCapAttributes_t attr, void *buf, size_t sizeInBytes,
                                                 size_t *sizeWritten) {
    if (!algo) {
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "no algorithm");
    }
    const Algo &a = inside<Algo>(algo);
    bool tiled = a.id == ALGO_TILED;
    uint32_t value = 0;
    switch (attr) {
    case CUBLASLT_ALGO_CAP_SPLITK_SUPPORT:
        value = tiled;
        break;
    case CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK:
        value = tiled ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : 0;
        break;
    case CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT:
        value = 1;
        break;
    case CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX:
        break;
    case CUBLASLT_ALGO_CAP_TILE_IDS:
        return tiled ? get(tiles, sizeof tiles, buf, sizeInBytes, sizeWritten)
                     : get(&value, 4, buf, sizeInBytes, sizeWritten);
    case CUBLASLT_ALGO_CAP_STAGES_IDS:
        return tiled ? get(stages, sizeof stages, buf, sizeInBytes, sizeWritten)
                     : get(&value, 4, buf, sizeInBytes, sizeWritten);
    case CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_D_BYTES:
        value = uint32_t(alignment_of(a, a.input));
        break;
    default:
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "a capability that the emulator does not know");
    }
    return get(&value, 4, buf, sizeInBytes, sizeWritten);
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attr, const void *buf,
                                                    size_t sizeInBytes) {
    Field f = algo && attr != CUBLASLT_ALGO_CONFIG_ID ? algo_field(inside<Algo>(algo), attr) : Field{};
    return f.at ? set(f.at, f.size, buf, sizeInBytes)
                : refuse(CUBLAS_STATUS_INVALID_VALUE, "an attribute of an algorithm that cannot be set");
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attr, void *buf,
                                                    size_t sizeInBytes, size_t *sizeWritten) {
    if (!algo) {
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "no algorithm");
    }
    Algo copy = inside<Algo>(algo);
    Field f = algo_field(copy, attr);
    return f.at ? get(f.at, f.size, buf, sizeInBytes, sizeWritten)
                : refuse(CUBLAS_STATUS_INVALID_VALUE, "an attribute of an algorithm");
}

/* Pointers and numbers of a call: alpha and beta of the host are read now. */
static cublasStatus_t bind(Product *q, const void *alpha, const void *beta) {
    const Problem &p = q->p;
    int mode = p.desc.pointer_mode;
    if (!alpha || (!beta && mode != CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_ZERO) || !q->a || !q->b || !q->d) {
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "a pointer is missing");
    }
    bool integer = p.desc.scale == CUDA_R_32I;
    q->alpha_vector = mode >= CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_ZERO;
    if (mode == CUBLASLT_POINTER_MODE_HOST) {
        memcpy(integer ? static_cast<void *>(&q->alpha_int) : &q->alpha, alpha, 4);
    } else {
        q->alpha_device = alpha;
    }
    if (mode == CUBLASLT_POINTER_MODE_DEVICE) {
        q->beta_device = beta;
    } else if (mode != CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_ZERO) {
        memcpy(integer ? static_cast<void *>(&q->beta_int) : &q->beta, beta, 4);
    }
    bool reads_c = q->beta != 0 || q->beta_int != 0 || q->beta_device;
    if ((reads_c && !q->c) || (p.desc.epilogue == CUBLASLT_EPILOGUE_BIAS && !p.desc.bias)) {
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "C or the bias is missing");
    }
    const struct {
        const void *p;
        int type;
    } ends[] = {{q->a, p.a.type}, {q->b, p.b.type}, {reads_c ? q->c : q->d, p.c.type}, {q->d, p.d.type}};
    for (const auto &end : ends) {
        if (uintptr_t(end.p) % alignment_of(q->algo, end.type) != 0) {
            return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "a pointer off the alignment of the algorithm");
        }
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t computeDesc, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t Adesc, const void *B, cublasLtMatrixLayout_t Bdesc,
                              const void *beta, const void *C, cublasLtMatrixLayout_t Cdesc, void *D,
                              cublasLtMatrixLayout_t Ddesc, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspaceSizeInBytes, cudaStream_t stream) {
    if (!known_handle(lightHandle)) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    Product q = {};
    cublasStatus_t status = check_problem(computeDesc, Adesc, Bdesc, Cdesc, Ddesc, &q.p);
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    q.a = A;
    q.b = B;
    q.c = C;
    q.d = D;
    q.workspace = workspace;
    std::vector<Algo> list = algo ? std::vector<Algo>{inside<Algo>(algo)} : candidates(q.p);
    for (const Algo &one : list) { /* without a choice: the first that fits */
        q.algo = one;
        status = check_algo(one, q.p);
        if (status == CUBLAS_STATUS_SUCCESS) {
            status = bind(&q, alpha, beta);
        }
        if (status == CUBLAS_STATUS_SUCCESS && workspace_of(one, q.p) > (workspace ? workspaceSizeInBytes : 0)) {
            status = refuse(CUBLAS_STATUS_INVALID_VALUE, "a workspace smaller than the algorithm needs");
        }
        if (status == CUBLAS_STATUS_SUCCESS) {
            break;
        }
    }
    if (status == CUBLAS_STATUS_SUCCESS && workspace && uintptr_t(workspace) % 16 != 0) {
        status = refuse(CUBLAS_STATUS_INVALID_VALUE, "a workspace that is not aligned to 16 bytes");
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    Call c;
    Stream *s = c.error == cudaSuccess ? find_stream(c.r, stream) : nullptr;
    if (!s) {
        return c.error == cudaSuccess ? CUBLAS_STATUS_INVALID_VALUE : status_of(c.error);
    }
    cudaError_t asynchronous = cudaSuccess;
    if (!s->capture) {
        cudaError_t error = inject(c.r, c.lock, EMU_CALL_MATMUL, &asynchronous);
        if (error != cudaSuccess) {
            return status_of(error);
        }
    }
    return status_of(enqueue(c.r, c.lock, *s, Kind::kernel, "cublasLtMatmul", 0, [q, asynchronous](int device) {
        return asynchronous != cudaSuccess ? asynchronous : run_product(q, device);
    }));
}
}
