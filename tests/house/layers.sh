#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Files depend on lower layers alone, and not on each other in circles: by what they include, and by the symbols that
# their objects use.
# shellcheck source=tests/house/lib.sh
. "$(dirname "$0")/lib.sh"
plan 9
compgen -G "$BUILD/libuccl-core.a.p/*unity*" >/dev/null && skip_all "the core is one object in a release build"

layers() { python3 "$HOUSE/layers.py" "$@"; }
layers_of_copy() { layers "$COPY" "$BUILD" "$WORK/objects"; }

# object FILE TEXT: a source of the library in the copy, with its object
object() {
    local name=${1//\//_}
    mkdir -p "$WORK/objects"
    echo "$2" >"$COPY/$1"
    cc -c "$COPY/$1" -o "$WORK/objects/$name.o"
}

upward_include() {
    echo '#include "nic/nic.h"' >>"$COPY/engine/base/ring.h"
    finds '^engine/base/ring\.h:[0-9]+ includes engine/nic/nic\.h: engine/base is below engine/nic' layers_of_copy
}

include_of_the_inside() {
    echo '#include "core/wire.h"' >>"$COPY/plugins/nccl/memory.c"
    finds '^plugins/nccl/memory\.c:[0-9]+ includes engine/core/wire\.h: plugins/nccl uses only' layers_of_copy
}

circle_of_includes() {
    echo '#include "two.h"' >"$COPY/engine/mem/one.h"
    echo '#include "three.h"' >"$COPY/engine/mem/two.h"
    echo '#include "one.h"' >"$COPY/engine/mem/three.h"
    finds 'circle: .*engine/mem/one\.h:1 includes engine/mem/two\.h' layers_of_copy
}

upward_use() {
    object engine/base/upward.c 'int high(void); int upward(void); int upward(void) { return high(); }'
    object engine/mem/high.c 'int high(void); int high(void) { return 1; }'
    finds '^engine/base/upward\.c uses high of engine/mem/high\.c: engine/base is below engine/mem' layers_of_copy
}

circle_of_objects() {
    object engine/mem/one.c 'int two(void); int one(void); int one(void) { return two(); }'
    object engine/mem/two.c 'int two(void); int three(void); int two(void) { return three(); }'
    object engine/mem/three.c 'int three(void); extern int (*const table)(void); int three(void) { return table(); }'
    object engine/mem/table.c 'int one(void); extern int (*const table)(void); int (*const table)(void) = one;'
    finds 'circle: .*engine/mem/three\.c uses table of engine/mem/table\.c' layers_of_copy
}

unknown_folder() {
    mkdir "$COPY/engine/cellar"
    echo 'int cellar;' >"$COPY/engine/cellar/cellar.c"
    finds '^engine/cellar/cellar\.c: its folder is in no line' layers_of_copy
}

needless_upward() {
    echo 'upward engine/base/ring engine/nic/nic' >>"$COPY/tests/house/exceptions.txt"
    finds 'no longer needed: upward engine/base/ring engine/nic/nic' layers_of_copy
}

needless_circle() {
    echo 'circle engine/base: ring siphash' >>"$COPY/tests/house/exceptions.txt"
    finds 'no longer in a circle: engine/base/ring engine/base/siphash' layers_of_copy
}

# seeded NAME FUNCTION
seeded() {
    rm -rf "$WORK/objects"
    fresh_copy
    check "$@"
}

check "the layers: no include or use goes upward, and no new circle" layers "$SOURCE" "$BUILD"
seeded "an include that goes upward is found" upward_include
seeded "an include of what is inside the library is found" include_of_the_inside
seeded "a circle of includes is found" circle_of_includes
seeded "a use of a symbol that goes upward is found" upward_use
seeded "a circle of objects is found" circle_of_objects
seeded "a folder without a layer is found" unknown_folder
seeded "an upward exception that is no longer needed is found" needless_upward
seeded "a circle that is no longer one is found" needless_circle
finish
