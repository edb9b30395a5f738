;;; qwen-companion-terminal-ghostel.el --- CLIs in Ghostel  -*- lexical-binding: t; -*-

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

;; The terminal emulator Ghostel, a package with a compiled module.  It is
;; required when a CLI is started in it.

;;; Code:

(require 'qwen-companion-terminal)

(declare-function ghostel-exec "ext:ghostel" (buffer program &optional args identity))
(declare-function ghostel-mode "ext:ghostel" ())
(declare-function ghostel-paste-string "ext:ghostel" (string))
(declare-function ghostel-send-string "ext:ghostel" (string))
(defvar ghostel-buffer-name-function)
(defvar ghostel-use-native-pty)

(cl-defmethod qwen-companion-terminal-start ((_kind (eql ghostel)) buffer command)
  "Run COMMAND in Ghostel in BUFFER."
  (require 'ghostel)
  (qwen-companion-terminal-show buffer)
  (ghostel-mode)
  ;; The buffer keeps its name.
  (setq-local ghostel-buffer-name-function nil)
  ;; A process of Emacs: of another, Emacs does not tell its CLI's id, by which
  ;; a session finds its terminal.
  (let ((ghostel-use-native-pty nil))
    (ghostel-exec buffer (car command) (cdr command))))

(cl-defmethod qwen-companion-terminal-paste ((_kind (eql ghostel)) text)
  "Paste TEXT into the Ghostel terminal of the current buffer."
  (ghostel-paste-string text))

(cl-defmethod qwen-companion-terminal-return ((_kind (eql ghostel)))
  "Press return in the Ghostel terminal of the current buffer."
  (ghostel-send-string "\r"))

(provide 'qwen-companion-terminal-ghostel)
;;; qwen-companion-terminal-ghostel.el ends here
