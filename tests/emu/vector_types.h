/*
 * The vector types of CUDA, for C and C++: plain structs with the sizes and alignments of the real ones (16-byte types
 * are aligned by 16, so that a compiler and UBSan see a misaligned access).
 */
#ifndef EMU_VECTOR_TYPES_H
#define EMU_VECTOR_TYPES_H

#define EMU_VECTOR(name, type, alignment)                                                                              \
    typedef struct name##1 {                                                                                           \
        type x;                                                                                                        \
    }                                                                                                                  \
    name##1;                                                                                                           \
    typedef struct __attribute__((aligned(2 * alignment))) name##2 {                                                   \
        type x, y;                                                                                                     \
    }                                                                                                                  \
    name##2;                                                                                                           \
    typedef struct name##3 {                                                                                           \
        type x, y, z;                                                                                                  \
    }                                                                                                                  \
    name##3;                                                                                                           \
    typedef struct __attribute__((aligned((4 * alignment) < 16 ? (4 * alignment) : 16))) name##4 {                     \
        type x, y, z, w;                                                                                               \
    }                                                                                                                  \
    name##4;

EMU_VECTOR(char, signed char, 1)
EMU_VECTOR(uchar, unsigned char, 1)
EMU_VECTOR(short, short, 2)
EMU_VECTOR(ushort, unsigned short, 2)
EMU_VECTOR(int, int, 4)
EMU_VECTOR(uint, unsigned int, 4)
EMU_VECTOR(float, float, 4)
EMU_VECTOR(double, double, 8)
EMU_VECTOR(longlong, long long, 8)
EMU_VECTOR(ulonglong, unsigned long long, 8)

#ifdef __cplusplus
struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1) : x(vx), y(vy), z(vz) {
    }
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {
    }
};

#define EMU_MAKE(name, type)                                                                                           \
    static inline name##1 make_##name##1(type x) {                                                                     \
        return name##1 {x};                                                                                            \
    }                                                                                                                  \
    static inline name##2 make_##name##2(type x, type y) {                                                             \
        return name##2 {x, y};                                                                                         \
    }                                                                                                                  \
    static inline name##3 make_##name##3(type x, type y, type z) {                                                     \
        return name##3 {x, y, z};                                                                                      \
    }                                                                                                                  \
    static inline name##4 make_##name##4(type x, type y, type z, type w) {                                             \
        return name##4 {x, y, z, w};                                                                                   \
    }
EMU_MAKE(char, signed char)
EMU_MAKE(uchar, unsigned char)
EMU_MAKE(short, short)
EMU_MAKE(ushort, unsigned short)
EMU_MAKE(int, int)
EMU_MAKE(uint, unsigned int)
EMU_MAKE(float, float)
EMU_MAKE(double, double)
EMU_MAKE(longlong, long long)
EMU_MAKE(ulonglong, unsigned long long)
#undef EMU_MAKE
#else
typedef struct dim3 {
    unsigned int x, y, z;
} dim3;
#endif
#undef EMU_VECTOR

#endif
