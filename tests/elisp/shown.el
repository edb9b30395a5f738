;;; shown.el --- What a chat shows of texts  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; For test_markdown.py: read a JSON array of answers from standard input and
;; print that of the texts that a chat shows of them.

;;; Code:

(require 'qwen-companion-chat-markdown)

(defun shown-text (answer)
  "Return the text that a chat shows for ANSWER, without blocks of code."
  (with-temp-buffer
    (insert (propertize (concat answer "\n") 'qwen-companion-chat-voice 'answer))
    (add-to-invisibility-spec 'qwen-companion-chat-markup)
    (qwen-companion-chat-markdown--fontify (point-min) (point-max))
    (let ((from (point-min)) parts)
      (while (< from (point-max))
        (let ((next (next-char-property-change from (point-max))))
          (unless (invisible-p from)
            (push (buffer-substring-no-properties from next) parts))
          (setq from next)))
      (apply #'concat (nreverse parts)))))

(defun shown-main ()
  "Print the shown texts for the answers on standard input."
  (let ((answers (json-parse-string (read-from-minibuffer ""))))
    (set-binary-mode 'stdout t)
    (with-temp-buffer
      ;; Since Emacs 30 `json-serialize' returns bytes, not characters.
      (json-insert (vconcat (mapcar #'shown-text answers)))
      (princ (buffer-string)))))

(provide 'shown)
;;; shown.el ends here
