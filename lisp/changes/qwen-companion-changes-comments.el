;;; qwen-companion-changes-comments.el --- Comments on lines in the buffer of changes  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Comments are noted on lines of hunks, and go to the CLI as one prompt.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-changes-items)
(require 'qwen-companion-comments)
(require 'qwen-companion-drafts)
(require 'qwen-companion-header)
(require 'qwen-companion-hunks-view)
(require 'qwen-companion-items)
(require 'qwen-companion-journal)
(require 'qwen-companion-layer)
(require 'qwen-companion-messages)
(require 'qwen-companion-prompts)
(require 'qwen-companion-registry)
(require 'qwen-companion-terminal)
(require 'qwen-companion-untrusted)

(cl-defstruct (qwen-companion-changes-comments--comment
               (:constructor qwen-companion-changes-comments-make-comment)
               (:copier nil))
  "A comment on a line.
GROUP and PATH are where the line is shown; ROOT is the workspace root.
SOURCE is (KIND OLD . NEW): the kind of line with its numbers in both
texts.  LINE is its text with the sign, TEXT the user's comment."
  group path root source line text)

(defun qwen-companion-changes-comments-read (path line &optional text)
  "Read a comment on LINE of the file PATH; TEXT is the one so far."
  (string-trim
   (read-string (format "Comment on %s:%d: "
                        (file-name-nondirectory (qwen-companion-untrusted-path path))
                        line)
                text)))

(defun qwen-companion-changes-comments-add (comment)
  "Add COMMENT to those of the current buffer."
  (setq qwen-companion-changes-items-comments
        (append qwen-companion-changes-items-comments (list comment)))
  (force-mode-line-update))

(defun qwen-companion-changes-comments-comment ()
  "Note a comment on the line at point; with an empty one, remove it."
  (pcase-let* ((`(,group . ,path) (qwen-companion-changes-items-file-at-point))
               (_ (unless (qwen-companion-hunks-view-hunk-at (point))
                    (qwen-companion-header-error
                     "Not on a line of a hunk; \\[qwen-companion-changes-toggle-fold] unfolds the file")))
               (source (qwen-companion-changes-comments--source-at-point))
               (id (qwen-companion-changes-items-group-id group))
               (known (cl-find-if
                       (lambda (comment)
                         (and (equal id (qwen-companion-changes-comments--comment-group comment))
                              (equal path (qwen-companion-changes-comments--comment-path comment))
                              (equal source (qwen-companion-changes-comments--comment-source comment))))
                       qwen-companion-changes-items-comments))
               (text (qwen-companion-changes-comments-read
                      path (cddr source)
                      (and known (qwen-companion-changes-comments--comment-text known)))))
    (setq qwen-companion-changes-items-comments
          (delq known qwen-companion-changes-items-comments))
    (unless (string-empty-p text)
      (qwen-companion-changes-comments-add
       (qwen-companion-changes-comments-make-comment
        :group id :path path
        :root (qwen-companion-changes-items-group-root group)
        :source source
        :line (buffer-substring-no-properties (line-beginning-position) (line-end-position))
        :text text)))
    (qwen-companion-changes-comments--auto-save)
    (qwen-companion-changes-comments--show-in-file id path)
    (force-mode-line-update)))

(defun qwen-companion-changes-comments--auto-save ()
  "Have Emacs auto-save the unsent comments, if any."
  (let ((comments qwen-companion-changes-items-comments))
    (qwen-companion-drafts-set
     (format " *qwen-companion comments: %s*" (buffer-name))
     (and comments (qwen-companion-changes-comments--prompt comments))
     (and comments (qwen-companion-changes-comments--comment-root (car comments))))))

(defun qwen-companion-changes-comments--source-at-point ()
  "Return the kind of the line at point and its numbers: (KIND OLD . NEW)."
  (cons (or (car (qwen-companion-hunks-view-source-at (point))) 'header)
        (qwen-companion-hunks-view-lines-at)))

(defun qwen-companion-changes-comments-show ()
  "Show the comments on all unfolded items."
  (dolist (place (delete-dups
                  (mapcar (lambda (comment)
                            (cons (qwen-companion-changes-comments--comment-group comment)
                                  (qwen-companion-changes-comments--comment-path comment)))
                          qwen-companion-changes-items-comments)))
    (qwen-companion-changes-comments--show-in-file (car place) (cdr place))))

(defun qwen-companion-changes-comments--show-in-file (id path)
  "Show the comments on lines of PATH in the group ID.
Show a comment whose line is gone below the heading of the file."
  (pcase-let ((`(,_ ,start . ,end) (assoc (list 'body id path) (qwen-companion-items-bounds))))
    (when start
      (remove-overlays start end 'qwen-companion-changes-comments t)
      (dolist (comment qwen-companion-changes-items-comments)
        (when (and (equal id (qwen-companion-changes-comments--comment-group comment))
                   (equal path (qwen-companion-changes-comments--comment-path comment)))
          (save-excursion
            (goto-char start)
            (while (and (< (point) end)
                        (not (and (qwen-companion-hunks-view-hunk-at (point))
                                  (equal (qwen-companion-changes-comments--comment-source comment)
                                         (qwen-companion-changes-comments--source-at-point)))))
              (forward-line 1))
            (when (>= (point) end)
              (goto-char start))
            (qwen-companion-comments-show (qwen-companion-changes-comments--comment-text comment)
                                          'qwen-companion-changes-comments)))))))

(defun qwen-companion-changes-send-comments ()
  "Send all comments to the CLI as one prompt, with places and quoted lines.
While the CLI works the prompt is queued, see `qwen-companion-ask-take-back'.
If the CLI accepts no prompts from Emacs, copy the prompt instead, for you
to paste."
  (interactive nil qwen-companion-changes-mode)
  (unless qwen-companion-changes-items-comments
    (qwen-companion-header-error
     "No comments to send; \\[qwen-companion-changes-comment] comments on the line at point"))
  (let* ((prompt (qwen-companion-changes-comments--prompt qwen-companion-changes-items-comments))
         (count (length qwen-companion-changes-items-comments))
         (session (qwen-companion-changes-comments--session))
         (reachable (and session
                         (or (qwen-companion-terminal-session-buffer session)
                             (qwen-companion-registry-of session)))))
    (if (not reachable)
        (progn
          (kill-new prompt)
          (message "The CLI takes no prompts from Emacs: %d comment%s copied, paste %s there"
                   count (if (= count 1) "" "s") (if (= count 1) "it" "them")))
      (let ((done (qwen-companion-prompts-send
                   session (qwen-companion-changes-comments--comment-root
                            (car qwen-companion-changes-items-comments))
                   prompt)))
        (message "%d comment%s: %s" count (if (= count 1) "" "s") done)))
    (setq qwen-companion-changes-items-comments nil)
    (qwen-companion-changes-comments--auto-save)
    (remove-overlays nil nil 'qwen-companion-changes-comments t)
    (force-mode-line-update)))

(defun qwen-companion-changes-comments--prompt (comments)
  "Return COMMENTS as one prompt."
  (qwen-companion-comments-prompt
   "Comments on your changes:"
   (mapcar (lambda (comment)
             (list (file-relative-name (qwen-companion-changes-comments--comment-path comment)
                                       (qwen-companion-changes-comments--comment-root comment))
                   (cddr (qwen-companion-changes-comments--comment-source comment))
                   (qwen-companion-changes-comments--comment-line comment)
                   (qwen-companion-changes-comments--comment-text comment)))
           comments)))

(defun qwen-companion-changes-comments--session ()
  "Return the connected CLI that gets the comments, or nil.
Ask if there are several candidates."
  (let* ((roots (mapcar #'qwen-companion-changes-comments--comment-root
                        qwen-companion-changes-items-comments))
         (known
          (delq nil
                (mapcar (lambda (comment)
                          (when-let* ((id (qwen-companion-changes-comments--comment-group comment))
                                      ((stringp id))
                                      (turn (qwen-companion-journal-turn id)))
                            (qwen-companion-registry-find (qwen-companion-turn-cli turn))))
                        qwen-companion-changes-items-comments)))
         (near
          (cl-remove-if-not
           (lambda (session)
             (when-let* ((directory (qwen-companion-session-directory session)))
               (cl-some (lambda (root)
                          (string-prefix-p (file-name-as-directory root)
                                           (file-name-as-directory directory)))
                        roots)))
           (qwen-companion-backend-sessions)))
         (candidates (or (delete-dups known) near)))
    (if (null (cdr candidates))
        (car candidates)
      (qwen-companion-layer-read-session "Send the comments to: " candidates))))

(provide 'qwen-companion-changes-comments)
;;; qwen-companion-changes-comments.el ends here
