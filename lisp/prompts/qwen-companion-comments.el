;;; qwen-companion-comments.el --- Comments for a CLI, with their places  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The format of comments on the changes of a CLI, in a buffer and in the
;; prompt by which they are sent.

;;; Code:

(require 'qwen-companion-untrusted)

(defface qwen-companion-comment
  '((t :inherit (font-lock-comment-face bold)))
  "Face of the user's comments on changes."
  :group 'qwen-companion)

(defun qwen-companion-comments-prompt (title comments)
  "Return COMMENTS as one prompt that begins with TITLE.
Each comment is (FILE LINE TEXT COMMENT): the name of a file, the number
of a line in it, its text, and the user's comment."
  (concat
   title "\n"
   (mapconcat
    (pcase-lambda (`(,file ,line ,text ,comment))
      (format "\n%s:%d\n> %s\n%s\n"
              (qwen-companion-untrusted-text file) line
              (qwen-companion-untrusted-text text t) comment))
    comments "")))

(defun qwen-companion-comments-show (comment property)
  "Show the text COMMENT below the line at point; return the overlay.
PROPERTY is set on that to t."
  (let ((overlay (make-overlay (line-beginning-position)
                               (min (point-max) (1+ (line-end-position))))))
    (overlay-put overlay property t)
    (overlay-put overlay 'evaporate t)
    (overlay-put overlay 'after-string
                 (propertize (concat "    " comment "\n") 'face 'qwen-companion-comment))
    overlay))

(provide 'qwen-companion-comments)
;;; qwen-companion-comments.el ends here
