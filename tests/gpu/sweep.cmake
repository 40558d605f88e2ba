# SPDX-License-Identifier: MIT
#
# Variants of the library for tests/gpu.sh sweep: sweep.txt says of each parameter which values, and
# which sources have to be compiled again.
#
# tam_sweep_read(<line> <prefix>): sets <prefix>_name, _macro, _now, _values, _cases, _sources.
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/sweep.txt TAM_SWEEP REGEX "^[^#]")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/sweep.txt)

function(tam_sweep_read line prefix)
    string(REGEX MATCHALL "[^ ]+" words "${line}")
    foreach(field name macro now values cases sources)
        list(POP_FRONT words word)
        string(REPLACE "," ";" word "${word}")
        set(${prefix}_${field} "${word}" PARENT_SCOPE)
    endforeach()
endfunction()

# tam_sweep_others(<objects> <sources> <out>): the objects that are not made of these sources. An object
# is called <top folder>/CMakeFiles/<target>.dir/<the rest of the source's path>.o
function(tam_sweep_others objects sources out)
    foreach(source IN LISTS sources)
        string(REGEX REPLACE "^[^/]*/(.*)$" "\\1" rest "${source}")
        string(REPLACE "." "[.]" rest "${rest}")
        set(objects "$<FILTER:${objects},EXCLUDE,[.]dir/(.*/)?${rest}[.]>")
    endforeach()
    set(${out} "${objects}" PARENT_SCOPE)
endfunction()
