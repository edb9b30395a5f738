;;; ido.el --- Ido  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(require 'ido)
(ido-mode 1)
(ido-everywhere 1)

;;; ido.el ends here
