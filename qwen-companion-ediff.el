;;; qwen-companion-ediff.el --- Reviews with Ediff  -*- lexical-binding: t; -*-

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

;; The front end that shows a proposal with Ediff: the text on disk as
;; variant A, the proposal as variant B, the control panel below.
;;
;; The windows are laid out here and not by Ediff, so that the selected
;; window (the terminal, usually) stays where it is.  That needs no advice
;; and changes no setting of the user's: Ediff keeps a layout it finds in
;; order, and a hook local to the control panel puts it in order first.

;;; Code:

(require 'cl-lib)
(require 'ediff)
(require 'ediff-util)
(require 'ediff-wind)
(require 'qwen-companion-context)
(require 'qwen-companion-diff)
(require 'qwen-companion-terminal)

(defcustom qwen-companion-ediff-layout 'auto
  "How the two sides of a review are laid out.
`auto' means side by side in a frame that is wide enough, else stacked.
In the control panel of a review, the key | changes it."
  :group 'qwen-companion
  :type '(choice (const :tag "As the frame allows" auto)
                 (const :tag "Side by side" side-by-side)
                 (const :tag "Stacked" stacked)))

(defconst qwen-companion-ediff--wide 120
  "Columns from which a frame is wide enough for two sides.")

(defconst qwen-companion-ediff--least-height 14
  "Lines a review needs beside another window, else it takes the frame.")

(defconst qwen-companion-ediff--kept-height 6
  "Lines the window beside a review keeps at least.")

(cl-defstruct (qwen-companion-ediff--view (:copier nil))
  "What shows a proposal.
CONTROL is the control panel, FRAME where it was shown, KEPT the window
that stays visible beside the review (nil when it has FRAME for itself)."
  control frame kept)

(defvar qwen-companion-ediff--configurations nil
  "Window configurations to return to: (FRAME . CONFIGURATION).")

;;; Keys and help

(defvar qwen-companion-ediff--keys
  '(("q" . qwen-companion-diff-bury)
    ("z" . qwen-companion-diff-bury)
    ("C-c C-c" . qwen-companion-diff-accept)
    ("C-c C-k" . qwen-companion-diff-reject))
  "Keys of the control panel that are ours.")

(defun qwen-companion-ediff--set-keys ()
  "Give the control panel our keys; Ediff's own map is left as it is."
  (let ((map (make-sparse-keymap)))
    (set-keymap-parent map (current-local-map))
    (pcase-dolist (`(,key . ,command) qwen-companion-ediff--keys)
      (define-key map (kbd key) command))
    (use-local-map map)))

(defun qwen-companion-ediff--brief-help ()
  "Return the help shown in the control panel."
  " C-c C-c accept   C-c C-k reject   q put aside   n/p next/previous change   a/b keep A's/B's   ? all keys")

(defun qwen-companion-ediff--long-help ()
  "Return Ediff's own help with our keys on top."
  (concat
   "  C-c C-c -accept the proposal (B) as it is now   C-c C-k -reject it   q -put it aside\n"
   "  Edit B directly; `a' copies the change at hand from the disk (A) to B: dropped.\n"
   ediff-long-help-message-head
   ediff-long-help-message-compare2
   ediff-long-help-message-tail))

;;; Windows

(defun qwen-companion-ediff--terminals (proposal)
  "Return the terminal buffers in which the CLI of PROPOSAL may run.
One when that is known, else all in which one was started that may
change the file."
  (if-let ((buffer (qwen-companion-terminal-session-buffer
                    (qwen-companion-backend-session
                     (qwen-companion-proposal-session proposal)))))
      (list buffer)
    (cl-remove-if-not
     (lambda (buffer)
       (file-in-directory-p (qwen-companion-proposal-path proposal)
                            (buffer-local-value 'default-directory buffer)))
     (qwen-companion-terminal-buffers))))

(defun qwen-companion-ediff--seen-window (buffer)
  "Return a window of BUFFER that can be seen, or nil.
It may be on any terminal: `get-buffer-window' with the argument
`visible' knows the selected frame's only."
  (cl-find-if (lambda (window)
                (let ((frame (window-frame window)))
                  (and (qwen-companion-context-frame-p frame)
                       (eq t (frame-visible-p frame))
                       ;; A text terminal shows one of its frames.
                       (memq (tty-top-frame frame) (list nil frame)))))
              (get-buffer-window-list buffer 'nomini t)))

(defun qwen-companion-ediff--frame (proposal)
  "Return the frame in which PROPOSAL is to be shown.
That of the terminal in which its CLI runs, else the selected frame."
  (if-let ((window (cl-some #'qwen-companion-ediff--seen-window
                            (qwen-companion-ediff--terminals proposal))))
      (window-frame window)
    (selected-frame)))

(defun qwen-companion-ediff--remember-windows (frame)
  "Remember the windows of FRAME, unless a review is on it already."
  (unless (assq frame qwen-companion-ediff--configurations)
    (push (cons frame (current-window-configuration frame))
          qwen-companion-ediff--configurations)))

(defun qwen-companion-ediff--forget-windows (frame)
  "Forget how FRAME looked before the review; return what was remembered."
  (when-let ((entry (assq frame qwen-companion-ediff--configurations)))
    (setq qwen-companion-ediff--configurations
          (delq entry qwen-companion-ediff--configurations))
    entry))

(defun qwen-companion-ediff--beside (frame)
  "Return the windows of FRAME that show no part of a review.
A list of (WINDOW . BUFFER)."
  (cl-loop for window in (window-list frame 'no-minibuffer)
           for buffer = (window-buffer window)
           unless (buffer-local-value 'qwen-companion-diff--proposal buffer)
           collect (cons window buffer)))

(defun qwen-companion-ediff--restore-windows (frame)
  "Make FRAME look as before the review.
Points move on with what happened meanwhile, as in a terminal; and a
buffer that the user has put beside the review stays there."
  (when-let ((entry (qwen-companion-ediff--forget-windows frame)))
    (when (frame-live-p frame)
      (let ((points (mapcar (lambda (window)
                              (cons (window-buffer window)
                                    (window-point window)))
                            (window-list frame 'no-minibuffer)))
            (beside (qwen-companion-ediff--beside frame))
            (selected (selected-frame)))
        (set-window-configuration (cdr entry))
        (pcase-dolist (`(,window . ,buffer) beside)
          (when (and (window-live-p window)
                     (not (eq buffer (window-buffer window))))
            (set-window-buffer window buffer)))
        (dolist (window (window-list frame 'no-minibuffer))
          (when-let ((point (assq (window-buffer window) points)))
            (set-window-point window (cdr point))))
        (when (frame-live-p selected)
          (select-frame selected 'norecord))))))

(defun qwen-companion-ediff--clear-area (kept)
  "Return a window for the review, with KEPT visible beside it.
KEPT is a live window; all others of its frame but the side windows go."
  (if (window-parameter kept 'window-side)
      (let ((windows (cl-remove-if
                      (lambda (window) (window-parameter window 'window-side))
                      (window-list (window-frame kept) 'no-minibuffer))))
        (mapc #'delete-window (cdr windows))
        (car windows))
    (delete-other-windows kept)
    (let ((height (window-total-height kept)))
      (split-window kept
                    (max qwen-companion-ediff--kept-height
                         (min (/ height 3)
                              (- height qwen-companion-ediff--least-height)))
                    'above))))

(defun qwen-companion-ediff--area (kept)
  "Return the window to divide for the review; KEPT may stay visible."
  (let* ((window (or kept (selected-window)))
         (height (window-total-height (frame-root-window (window-frame window)))))
    (if (and kept
             (>= height (+ qwen-companion-ediff--kept-height
                           qwen-companion-ediff--least-height)))
        (qwen-companion-ediff--clear-area kept)
      (let ((ignore-window-parameters t))
        (delete-other-windows window))
      window)))

(defun qwen-companion-ediff--show-buffer (window buffer)
  "Show BUFFER in WINDOW, whatever it was dedicated to."
  (set-window-dedicated-p window nil)
  (set-window-buffer window buffer))

(defun qwen-companion-ediff--layout ()
  "Lay out the windows of the review whose control panel is current.
Does nothing when they are in order."
  (unless (ediff-keep-window-config (current-buffer))
    (let* ((control (current-buffer))
           (proposal qwen-companion-diff--proposal)
           (view (qwen-companion-proposal-view proposal))
           (kept (qwen-companion-ediff--view-kept view))
           (window-min-height 1)
           (window-combination-resize nil)
           (split ediff-split-window-function)
           (top (qwen-companion-ediff--area (and (window-live-p kept) kept)))
           (panel (split-window
                   top (- (max 3 (min 4 (/ (window-total-height top) 4))))
                   'below))
           (other (progn
                    (qwen-companion-ediff--show-buffer top ediff-buffer-A)
                    (with-selected-window top
                      (condition-case nil
                          (funcall split)
                        (error (split-window-horizontally)))
                      (next-window top)))))
      (qwen-companion-ediff--show-buffer other ediff-buffer-B)
      (qwen-companion-ediff--show-buffer panel control)
      (setq ediff-multiframe nil
            ediff-window-A top
            ediff-window-B other
            ediff-window-C nil
            ediff-control-window panel)
      (select-window panel)
      (ediff-setup-control-buffer control))))

;;; Session

(defun qwen-companion-ediff--split-function (frame)
  "Return the function that divides a window of FRAME into two sides."
  (if (pcase qwen-companion-ediff-layout
        ('side-by-side t)
        ('stacked nil)
        (_ (>= (frame-width frame) qwen-companion-ediff--wide)))
      #'split-window-horizontally
    #'split-window-vertically))

(defun qwen-companion-ediff--adopt-control (proposal)
  "Make the current buffer, a new control panel, that of PROPOSAL."
  (setq qwen-companion-diff--proposal proposal)
  (setf (qwen-companion-ediff--view-control
         (qwen-companion-proposal-view proposal))
        (current-buffer))
  (setq-local ediff-window-setup-function #'ediff-setup-windows-plain
              ediff-split-window-function
              (qwen-companion-ediff--split-function (selected-frame))
              ediff-brief-help-message-function
              #'qwen-companion-ediff--brief-help
              ediff-long-help-message-function
              #'qwen-companion-ediff--long-help)
  (add-hook 'ediff-before-setup-windows-hook
            #'qwen-companion-ediff--layout nil t)
  (add-hook 'kill-buffer-hook #'qwen-companion-ediff--control-killed nil t))

(defun qwen-companion-ediff--started ()
  "Finish the start of a session; the control panel is current."
  (setq ediff-keep-variants t)
  (qwen-companion-ediff--set-keys)
  (when (> ediff-number-of-differences 0)
    (ediff-next-difference)))

(defun qwen-companion-ediff--control-killed ()
  "Put the review aside when its control panel is killed by hand."
  (let ((proposal qwen-companion-diff--proposal))
    (setq ediff-session-registry
          (delq (current-buffer) ediff-session-registry))
    (when (eq (qwen-companion-proposal-state proposal) 'shown)
      (setf (qwen-companion-proposal-state proposal) 'pending)
      (qwen-companion-ediff--restore-windows
       (qwen-companion-ediff--view-frame
        (qwen-companion-proposal-view proposal))))
    (setf (qwen-companion-proposal-view proposal) nil)))

(defun qwen-companion-ediff--start (proposal)
  "Start an Ediff session for PROPOSAL in the selected frame."
  (let ((ediff-mode-hook
         (cons (lambda () (qwen-companion-ediff--adopt-control proposal))
               ediff-mode-hook)))
    (ediff-buffers (qwen-companion-proposal-disk-buffer proposal)
                   (qwen-companion-proposal-buffer proposal)
                   (list #'qwen-companion-ediff--started))))

(cl-defmethod qwen-companion-diff-show ((_style (eql 'ediff)) proposal select)
  "Show PROPOSAL with Ediff, and select it if SELECT is non-nil."
  (let* ((frame (qwen-companion-ediff--frame proposal))
         (selected (selected-window))
         (control (qwen-companion-ediff--control proposal)))
    (qwen-companion-ediff--remember-windows frame)
    (setf (qwen-companion-proposal-view proposal)
          (make-qwen-companion-ediff--view
           :control control
           :frame frame
           :kept (and (not select) (frame-selected-window frame))))
    (with-selected-frame frame
      (if control
          (with-current-buffer control
            (ediff-recenter 'no-rehighlight))
        (qwen-companion-ediff--start proposal)))
    (cond
     (select
      (select-frame-set-input-focus frame)
      (select-window (get-buffer-window
                      (qwen-companion-ediff--control proposal) frame)))
     ((window-live-p selected)
      (select-window selected)))))

(defun qwen-companion-ediff--control (proposal)
  "Return the control panel of PROPOSAL if it is alive."
  (when-let* ((view (qwen-companion-proposal-view proposal))
              (control (qwen-companion-ediff--view-control view)))
    (and (buffer-live-p control) control)))

(cl-defmethod qwen-companion-diff-hide ((_style (eql 'ediff)) proposal)
  "End the Ediff session of PROPOSAL; the windows return as they were.
If the user has put other things on the screen meanwhile, they stay."
  (let* ((control (qwen-companion-ediff--control proposal))
         (visible (and control (get-buffer-window control t)))
         (view (qwen-companion-proposal-view proposal))
         (frame (and view (qwen-companion-ediff--view-frame view))))
    (when control
      (with-current-buffer control
        (save-window-excursion
          (condition-case nil
              (ediff-really-quit nil)
            ;; It has not got far enough to be quit.
            (error (kill-buffer control))))))
    (setf (qwen-companion-proposal-view proposal) nil)
    (if visible
        (qwen-companion-ediff--restore-windows frame)
      (qwen-companion-ediff--forget-windows frame))))

(cl-defmethod qwen-companion-diff-visible-p ((_style (eql 'ediff)) proposal)
  "Return non-nil when the Ediff session of PROPOSAL is on the screen."
  (when-let ((control (qwen-companion-ediff--control proposal)))
    (qwen-companion-ediff--seen-window control)))

(cl-defmethod qwen-companion-diff-frame ((_style (eql 'ediff)) proposal)
  "Return the frame in which PROPOSAL was shown last, live or not."
  (when-let ((view (qwen-companion-proposal-view proposal)))
    (qwen-companion-ediff--view-frame view)))

(provide 'qwen-companion-ediff)
;;; qwen-companion-ediff.el ends here
