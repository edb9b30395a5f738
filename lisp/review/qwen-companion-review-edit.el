;;; qwen-companion-review-edit.el --- Edit lines of a proposal in a buffer of their own  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Some lines of a proposal, or all of them, in the mode of its file.  Only
;; C-c C-c puts them back.  The edit survives until then, even if the
;; proposal changes or ends meanwhile.

;;; Code:

(require 'qwen-companion-buffers)
(require 'qwen-companion-drafts)
(require 'qwen-companion-places)
(require 'qwen-companion-proposal)
(require 'qwen-companion-review)
(require 'qwen-companion-header)
(require 'qwen-companion-hunks)
(require 'qwen-companion-untrusted)

(defvar-local qwen-companion-review-edit--about nil
  "The edited lines: (PROPOSAL START END TEXT).
START and END are markers in the buffer of PROPOSAL, TEXT is the text
that was between them.")

(qwen-companion-header-define-keys qwen-companion-edit-mode "Edit"
  ("C-c C-c" qwen-companion-edit-finish "Apply to the Proposal" "apply to the proposal"
   :keep t)
  ("C-c C-k" qwen-companion-edit-drop "Drop the Edit" "drop the edit" :keep t))

(define-minor-mode qwen-companion-edit-mode
  "Minor mode of a buffer for editing proposed lines.

\\{qwen-companion-edit-mode-map}"
  :interactive nil
  :lighter nil
  (if qwen-companion-edit-mode
      (add-hook 'kill-buffer-query-functions #'qwen-companion-review-edit--query nil t)
    (remove-hook 'kill-buffer-query-functions #'qwen-companion-review-edit--query t))
  (setq-local buffer-offer-save qwen-companion-edit-mode)
  (setq header-line-format
        (and qwen-companion-edit-mode '((:eval (qwen-companion-review-edit--header))))))

(defun qwen-companion-review-edit--header ()
  "Return the header line: the file and the keys."
  (qwen-companion-header-line
   (qwen-companion-review-file (car qwen-companion-review-edit--about))
   (qwen-companion-header-mode-keys 'qwen-companion-edit-mode)))

(defun qwen-companion-review-edit (proposal at &optional line count)
  "Edit COUNT lines of PROPOSAL from LINE in a buffer of their own.
If LINE is nil, edit all lines.  Go to the line AT of them, from 1."
  (let* ((source (qwen-companion-proposal-buffer proposal))
         (bounds (if line
                     (qwen-companion-hunks-bounds source line count)
                   (with-current-buffer source (cons 1 (1+ (buffer-size))))))
         (buffer (qwen-companion-proposal-make-buffer proposal "edit")))
    (with-current-buffer buffer
      (with-current-buffer source
        (save-restriction
          (widen)
          (let ((text (buffer-substring-no-properties (car bounds) (cdr bounds))))
            (with-current-buffer buffer (insert text)))))
      (goto-char (point-min))
      (qwen-companion-untrusted-set-major-mode (qwen-companion-proposal-path proposal))
      (qwen-companion-hunks-goto at)
      (setq buffer-undo-list nil
            qwen-companion-review-edit--about
            (with-current-buffer source
              (list proposal
                    (copy-marker (car bounds))
                    (copy-marker (cdr bounds) t)
                    (with-current-buffer buffer (buffer-string)))))
      (set-buffer-modified-p nil)
      (qwen-companion-edit-mode)
      (qwen-companion-drafts-keep
       'lines (qwen-companion-places-name (qwen-companion-proposal-path proposal))))
    (qwen-companion-review-edit--close-with proposal buffer)
    (pop-to-buffer buffer '(display-buffer-below-selected))))

(defun qwen-companion-review-edit--close-with (proposal buffer)
  "Have BUFFER killed together with PROPOSAL if it is unmodified."
  (with-current-buffer (qwen-companion-proposal-disk-buffer proposal)
    (add-hook 'kill-buffer-hook
              (lambda ()
                (when (and (buffer-live-p buffer)
                           (not (buffer-modified-p buffer)))
                  (kill-buffer buffer)))
              nil t)))

(defun qwen-companion-review-edit--query ()
  "Ask before killing a buffer whose edit is not in the proposal."
  (or (not (buffer-modified-p))
      (yes-or-no-p (format "The edit in %s is not in the proposal; kill it? "
                           (buffer-name)))))

(defun qwen-companion-edit-finish (&optional force)
  "Put the text of this buffer into the proposal.
If its lines have changed there meanwhile, signal a `user-error'; with a
prefix argument FORCE, replace them."
  (interactive "P" qwen-companion-edit-mode)
  (qwen-companion-buffers-require-mode 'qwen-companion-edit-mode)
  (pcase-let* ((`(,proposal ,start ,end ,text) qwen-companion-review-edit--about)
               (buffer (current-buffer))
               (source (qwen-companion-proposal-buffer proposal)))
    (unless (qwen-companion-proposal-open-p proposal)
      (user-error "The proposal is already %s; your text stays in this buffer"
                  (qwen-companion-proposal-state proposal)))
    (save-restriction
      (widen)
      (with-current-buffer source
        (qwen-companion-buffers-widened
          (unless (or force
                      (equal text (buffer-substring-no-properties start end)))
            (user-error "These lines of the proposal have changed meanwhile; a prefix argument replaces them by your text"))
          (let ((before (buffer-substring-no-properties start end))
                (modified (buffer-modified-p))
                (inhibit-read-only t))
            (narrow-to-region start end)
            (undo-boundary)
            (replace-buffer-contents buffer 0.1)
            (goto-char (point-max))
            (let ((open (not (bolp))))
              (widen)
              ;; Do not join the last line with the next one.
              (when (and open (not (eobp)))
                (insert "\n")))
            (undo-boundary)
            (when-let* ((difference (qwen-companion-proposal-difference proposal)))
              (qwen-companion-hunks-record
               difference 'edited
               (list (marker-position start) before
                     (buffer-substring-no-properties start (max end (point)))
                     modified)))))))
    (set-buffer-modified-p nil)
    (quit-window t)
    (qwen-companion-review-refresh (qwen-companion-proposal-style proposal)
                                 proposal)
    (run-hooks 'qwen-companion-proposal-changed-hook)))

(defun qwen-companion-edit-drop ()
  "Discard the edit in this buffer; the proposal does not change."
  (interactive nil qwen-companion-edit-mode)
  (qwen-companion-buffers-require-mode 'qwen-companion-edit-mode)
  (set-buffer-modified-p nil)
  (quit-window t))

(provide 'qwen-companion-review-edit)
;;; qwen-companion-review-edit.el ends here
