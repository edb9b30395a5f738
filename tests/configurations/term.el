;;; term.el --- Emacs's own terminal  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq qwen-companion-terminal 'term)

;;; term.el ends here
