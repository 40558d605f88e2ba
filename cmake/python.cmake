# SPDX-License-Identifier: MIT
#
# Python, for the extension: headers of any CPython from 3.9 on, since it is built for the stable ABI
# of 3.9. Sets TAM_HAVE_PYTHON, Python3_INCLUDE_DIRS, TAMIS_PYTHON_DIR.
if(TAMIS_PYTHON)
    find_package(Python3 3.9 QUIET COMPONENTS Interpreter Development.Module)
endif()
set(python_missing "no Python.h of 3.9 or later was found (Debian: apt-get install python3-dev).")
if(Python3_SOABI MATCHES "^cpython-[0-9]+t")
    set(Python3_Development.Module_FOUND OFF)
    set(python_missing "${Python3_EXECUTABLE} is free-threaded, which has no stable ABI.")
endif()
tam_decide(PYTHON "${Python3_Development.Module_FOUND}" "${python_missing}")

# Where that Python looks below a prefix. Debian's says local/lib/..., meant for /usr.
if(TAM_HAVE_PYTHON)
    execute_process(COMMAND ${Python3_EXECUTABLE} -c "import sysconfig
print(sysconfig.get_path('platlib', vars={'base': '', 'platbase': ''}))"
                    OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX REPLACE "^/(local/)?" "" folder "${folder}")
    set(TAMIS_PYTHON_DIR ${folder} CACHE STRING
        "Where the Python package is installed: absolute, or below the prefix")
endif()
