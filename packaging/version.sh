#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# version.sh HEADER: the version that tamis.h names, the one place that does; -: from standard input.
awk '/^#define TAMIS_VERSION_(MAJOR|MINOR|PATCH) / { text = text (n++ ? "." : "") $3 }
    END { print text; exit n != 3 }' "$1"
