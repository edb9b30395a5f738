;;; qwen-companion-terminal-term.el --- CLIs in term  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;; This program is free software; you can redistribute it and/or modify
;; it under the terms of the GNU General Public License as published by
;; the Free Software Foundation, either version 3 of the License, or
;; (at your option) any later version.

;; This program is distributed in the hope that it will be useful,
;; but WITHOUT ANY WARRANTY; without even the implied warranty of
;; MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE.  See the
;; GNU General Public License for more details.

;; You should have received a copy of the GNU General Public License
;; along with this program.  If not, see <https://www.gnu.org/licenses/>.

;;; Commentary:

;; The terminal emulator that is part of Emacs.

;;; Code:

(require 'qwen-companion-terminal)

(declare-function term-char-mode "term" ())
(declare-function term-exec "term" (buffer name command startfile switches))
(declare-function term-mode "term" ())

(cl-defmethod qwen-companion-terminal-start ((_kind (eql term)) buffer command)
  "Run COMMAND in `term-mode' in BUFFER."
  (require 'term)
  (qwen-companion-terminal-show buffer)
  (term-mode)
  (term-exec buffer (buffer-name buffer) (car command) nil (cdr command))
  (term-char-mode))

(provide 'qwen-companion-terminal-term)
;;; qwen-companion-terminal-term.el ends here
