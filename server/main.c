#include <stdio.h>

int main(void) {
    puts("inferd");
    return 0;
}
