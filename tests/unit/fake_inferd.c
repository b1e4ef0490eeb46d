/* `inferd serve` on the fake engine: fake_inferd serve MODEL [options], where MODEL is any file. */
#include "cmd/cmd.h"

int main(int argc, char **argv) {
    return cmd_serve(argc - 2, argv + 2);
}
