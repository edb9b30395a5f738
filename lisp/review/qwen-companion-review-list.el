;;; qwen-companion-review-list.el --- List the open proposals  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; `qwen-companion-diffs' lists the open proposals of all CLIs.
;;
;; diff(1) counts the lines of each change, one process at a time, while the
;; list is visible; Emacs only writes the proposal to a file.  Changes of
;; texts longer than `qwen-companion-review-list--count-limit' are not counted: writing
;; them would block Emacs.

;;; Code:

(require 'cl-lib)
(require 'qwen-companion-buffers)
(require 'qwen-companion-compare)
(require 'qwen-companion-header)
(require 'qwen-companion-layer)
(require 'qwen-companion-list)
(require 'qwen-companion-places)
(require 'qwen-companion-proposal)
(require 'qwen-companion-review)
(require 'qwen-companion-roots)
(require 'qwen-companion-timers)
(require 'qwen-companion-untrusted)

;;; Size of a change

(defconst qwen-companion-review-list--count-limit 500000
  "Characters and bytes above which the lines of a change are not counted.")

(defvar qwen-companion-review-list--sizes (make-hash-table :test #'eq :weakness 'key)
  "Hash table from proposals to (VERSIONS . SIZE).
VERSIONS identifies the texts that were compared.  SIZE is (ADDED
. REMOVED) in lines, or nil when they were not counted.")

(defvar qwen-companion-review-list--process nil
  "The process that counts lines, or nil.")

(defun qwen-companion-review-list--versions (proposal)
  "Return a value that identifies the present texts of PROPOSAL."
  (let ((attributes (file-attributes (file-chase-links
                                     (qwen-companion-proposal-path proposal)))))
    (list (buffer-chars-modified-tick (qwen-companion-proposal-buffer proposal))
          (file-attribute-modification-time attributes)
          (file-attribute-size attributes))))

(defun qwen-companion-review-list--size (proposal)
  "Return the last known size of the change by PROPOSAL, or nil."
  (cdr (gethash proposal qwen-companion-review-list--sizes)))

(defun qwen-companion-review-list--countable-p (proposal)
  "Return non-nil when counting the lines of PROPOSAL costs little."
  (let ((path (qwen-companion-proposal-path proposal)))
    (and (qwen-companion-proposal-file-p proposal)
         (< (buffer-size (qwen-companion-proposal-buffer proposal))
            qwen-companion-review-list--count-limit)
         (or (not (file-exists-p path))
             (and (file-regular-p path)
                  (< (file-attribute-size
                      (file-attributes (file-chase-links path)))
                     qwen-companion-review-list--count-limit))))))

(defun qwen-companion-review-list--count-next ()
  "Count the lines of the next proposal whose size is unknown, if any."
  (unless (process-live-p qwen-companion-review-list--process)
    (when-let* ((proposal
                 (cl-find-if-not
                  (lambda (proposal)
                    (equal (qwen-companion-review-list--versions proposal)
                           (car (gethash proposal qwen-companion-review-list--sizes))))
                  (qwen-companion-proposals))))
      (let ((versions (qwen-companion-review-list--versions proposal)))
        (puthash proposal
                 (cons versions
                       ;; Show the old size until the new one is known.
                       (and (qwen-companion-review-list--countable-p proposal)
                            (qwen-companion-review-list--size proposal)))
                 qwen-companion-review-list--sizes)
        (if (qwen-companion-review-list--countable-p proposal)
            (qwen-companion-review-list--start-diff proposal)
          (qwen-companion-review-list--count-next))))))

(defun qwen-companion-review-list--start-diff (proposal)
  "Start diff(1) to count the lines of PROPOSAL."
  (setq qwen-companion-review-list--process
        (ignore-errors
          (qwen-companion-compare-run
           (list (qwen-companion-proposal-path proposal))
           (qwen-companion-proposal-text proposal)
           '("on disk" "proposed")
           (lambda (output)
             (with-temp-buffer
               ;; Without the two labels.
               (insert (string-trim-left output ".*\n.*\n"))
               (setcdr (gethash proposal qwen-companion-review-list--sizes
                                (list nil))
                       (cons (count-matches "^\\+" (point-min)) (count-matches "^-" (point-min)))))
             (qwen-companion-review-list--refresh))))))

;;; The list

(defun qwen-companion-review-list--size-text (proposal)
  "Return the size of the change by PROPOSAL as text."
  (pcase (qwen-companion-review-list--size proposal)
    (`(,added . ,removed) (format "+%d -%d" added removed))
    (_ (if (or (qwen-companion-review-list--countable-p proposal)
               (not (qwen-companion-proposal-file-p proposal)))
           ""
         "large"))))

(defun qwen-companion-review-list--state-text (proposal)
  "Return the state of PROPOSAL, which is open, as text."
  (concat (cond ((not (eq (qwen-companion-proposal-state proposal) 'shown))
                 (if (qwen-companion-proposal-seen proposal) "put aside" "new"))
                (t "on screen"))
          (if (qwen-companion-proposal-edited-p proposal) ", edited" "")
          (if (qwen-companion-proposal-unsaved proposal) ", unsaved text" "")
          (qwen-companion-review-warning-hint proposal)))

(defun qwen-companion-review-list--entry (proposal)
  "Return the entry of PROPOSAL in the list."
  (let* ((path (qwen-companion-places-name (qwen-companion-proposal-path proposal)))
         (file-p (qwen-companion-proposal-file-p proposal))
         (root (or (qwen-companion-proposal-directory proposal)
                   (qwen-companion-roots-of (file-name-directory path)))))
    (list (qwen-companion-proposal-id proposal)
          (vconcat
           (mapcar #'qwen-companion-untrusted-text
                   (list (cond ((not file-p)
                                (symbol-name (qwen-companion-proposal-kind proposal)))
                               ((qwen-companion-places-remote-p path)
                                (qwen-companion-review-file proposal))
                               (root (file-relative-name path root))
                               (t (abbreviate-file-name path)))
                         (qwen-companion-proposal-label proposal)
                         (if root (file-name-nondirectory (directory-file-name root)) "")
                         (qwen-companion-review-list--size-text proposal)
                         (qwen-companion-layer-duration
                          (* 5 (floor (- (float-time)
                                         (qwen-companion-proposal-arrived proposal))
                                      5)))
                         (qwen-companion-review-list--state-text proposal)))))))

(defun qwen-companion-review-list--line-count (entry)
  "Return the size in lines of the proposal in ENTRY.
A proposal that was not counted is larger than any other."
  (pcase (qwen-companion-review-list--size (qwen-companion-proposal-by-id (car entry)))
    (`(,added . ,removed) (+ added removed))
    (_ most-positive-fixnum)))

(defun qwen-companion-review-list--smaller-p (a b)
  "Return non-nil when entry A's proposal has fewer lines than entry B's."
  (< (qwen-companion-review-list--line-count a) (qwen-companion-review-list--line-count b)))

(defun qwen-companion-review-list--younger-p (a b)
  "Return non-nil when entry A's proposal arrived after entry B's."
  (> (qwen-companion-proposal-arrived (qwen-companion-proposal-by-id (car a)))
     (qwen-companion-proposal-arrived (qwen-companion-proposal-by-id (car b)))))

(defun qwen-companion-review-list--refresh ()
  "Update the list if it is in a window."
  (qwen-companion-list-with-buffer 'qwen-companion-diffs-mode
    (qwen-companion-timers-update-visible)))

;;; Moving and marking

(defun qwen-companion-reviews-show ()
  "Show the review of the proposal at point beside the list.
The list stays selected; moving in it then shows the other reviews."
  (interactive nil qwen-companion-diffs-mode)
  (qwen-companion-review-replace (qwen-companion-list-at-point) nil))

(defun qwen-companion-reviews-next (&optional count)
  "Go to the next proposal, or forward by COUNT of them.
If a review is on the screen, show the proposal's review instead."
  (interactive "p" qwen-companion-diffs-mode)
  (qwen-companion-buffers-require-mode 'qwen-companion-diffs-mode)
  (let ((start (point)))
    (forward-line (or count 1))
    ;; Stay between the column names and the last proposal.
    (unless (tabulated-list-get-id)
      (goto-char start)))
  (when-let* ((shown (qwen-companion-review-shown))
              (here (qwen-companion-list-row))
              ((not (eq here shown))))
    (qwen-companion-reviews-show)))

(defun qwen-companion-reviews-previous (&optional count)
  "Go to the previous proposal, see `qwen-companion-reviews-next'.
COUNT is how many to go back."
  (interactive "p" qwen-companion-diffs-mode)
  (qwen-companion-reviews-next (- (or count 1))))

(defun qwen-companion-reviews-mark ()
  "Mark the proposal at point and go to the next one."
  (interactive nil qwen-companion-diffs-mode)
  (qwen-companion-list-mark t)
  (qwen-companion-reviews-next))

(defun qwen-companion-reviews-unmark (&optional all)
  "Remove the mark of the proposal at point and go to the next one.
With a prefix argument ALL, remove all marks."
  (interactive "P" qwen-companion-diffs-mode)
  (cond (all
         (setq qwen-companion-list-marked nil)
         (revert-buffer))
        (t
         (qwen-companion-list-mark nil)
         (qwen-companion-reviews-next))))

(defun qwen-companion-review-list--answer (verb all function)
  "Call FUNCTION with each marked proposal, else with the one at point.
ALL non-nil means all proposals.  Before answering several, ask with the
word VERB.  If FUNCTION refuses a proposal, continue with the others."
  (let ((proposals
         (cond (all (qwen-companion-review-grouped))
               ((qwen-companion-list-marked-things))
               (t (list (qwen-companion-list-at-point)))))
        refused)
    (when (or (null (cdr proposals))
              (y-or-n-p (format "%s %d proposals? " verb (length proposals))))
      (dolist (proposal proposals)
        (condition-case err
            (funcall function proposal)
          (user-error (push (error-message-string err) refused))))
      (when refused
        (user-error "%s" (mapconcat #'identity (nreverse refused) "; "))))))

(defun qwen-companion-reviews-accept-marked (&optional all)
  "Accept the marked proposals, or the one at point if none is marked.
With a prefix argument ALL, accept all of them."
  (interactive "P" qwen-companion-diffs-mode)
  (qwen-companion-review-list--answer "Accept" all #'qwen-companion-diff-accept))

(defun qwen-companion-reviews-reject-marked (&optional all)
  "Reject the marked proposals, or the one at point if none is marked.
With a prefix argument ALL, reject all of them."
  (interactive "P" qwen-companion-diffs-mode)
  (qwen-companion-review-list--answer "Reject" all #'qwen-companion-diff-reject))

(defun qwen-companion-review-list--remark ()
  "Return how many proposals are marked, or nil."
  (when-let* ((marked (qwen-companion-list-marked-things)))
    (format "%d marked" (length marked))))

(qwen-companion-list-define qwen-companion-diffs-mode "Proposals"
  "Major mode of the list of open proposals.
See Info node `(qwen-companion)Several proposals'."
  (:buffer "*qwen-companion proposals*"
   :thing "proposal"
   :columns [("File" 20 t) ("CLI" 16 t) ("Project" 10 t)
             ("Lines" 9 qwen-companion-review-list--smaller-p)
             ("Age" 6 qwen-companion-review-list--younger-p)
             ("State" 0 t)]
   :cut 0
   :rows #'qwen-companion-review-by-file
   :entry #'qwen-companion-review-list--entry
   :find #'qwen-companion-proposal-by-id
   :empty "No open proposals"
   :remark #'qwen-companion-review-list--remark
   :load (lambda (_) (qwen-companion-review-list--count-next))
   :category 'qwen-companion-proposal
   :name #'qwen-companion-review-name
   :period 5
   :hooks '((qwen-companion-proposal-changed-hook . qwen-companion-review-list--refresh))
   :set-up (lambda () (setq tabulated-list-padding 2)))
  (visit qwen-companion-diff-open "Go to the Review" "review"
   :if (qwen-companion-list-row) :embark t)
  (("C-o" "SPC") qwen-companion-reviews-show "Show the Review" "show"
   :if (qwen-companion-list-row))
  (next qwen-companion-reviews-next nil)
  (previous qwen-companion-reviews-previous nil)
  "---"
  ("A" qwen-companion-reviews-accept-marked "Accept the Marked" "accept/reject"
   :other qwen-companion-reviews-reject-marked)
  ("K" qwen-companion-reviews-reject-marked "Reject the Marked")
  ("m" qwen-companion-reviews-mark "Mark" "mark/unmark" :other qwen-companion-reviews-unmark)
  ("u" qwen-companion-reviews-unmark "Unmark")
  "---"
  ("C-c C-c" qwen-companion-diff-accept "Accept" :embark "a")
  ("C-c C-k" qwen-companion-diff-reject "Reject" :embark "k"))

;;;###autoload
(defun qwen-companion-diffs ()
  "List the open proposals.
The list updates itself while it is visible.
\\<qwen-companion-diffs-mode-map>\\[qwen-companion-diff-open] goes to a review, \\[qwen-companion-reviews-show] shows it beside the list.
\\[qwen-companion-reviews-mark] marks a proposal, \\[qwen-companion-reviews-accept-marked] accepts and \\[qwen-companion-reviews-reject-marked] rejects the marked ones."
  (interactive)
  (qwen-companion-list-open 'qwen-companion-diffs-mode))

(define-key qwen-companion-review-command-map "l" #'qwen-companion-diffs)

(provide 'qwen-companion-review-list)
;;; qwen-companion-review-list.el ends here
