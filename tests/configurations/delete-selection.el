;;; delete-selection.el --- Typing replaces the selection  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(delete-selection-mode 1)

;;; delete-selection.el ends here
